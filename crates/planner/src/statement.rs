//! A client's text into statements.
