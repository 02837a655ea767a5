//! `COPY`: files and the client's stream into a table and out of a query.
