"""V over HTTP: the server behind ``amc serve-value`` (`server`), and who asks one (`remote`)."""
