//! The PostgreSQL protocol over sessions: authentication, TLS, cancel, metrics. The only crate that names pgwire.
