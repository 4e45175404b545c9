//! tuff-format
