//! Reading images.
