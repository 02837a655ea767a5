//! The data folder: manifest, row-group files, lock.
