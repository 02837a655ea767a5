//! DataFusion's errors as PostgreSQL's.
