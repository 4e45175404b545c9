//! Errors put in on purpose.
