//! Native part of the Python package `tuff`, the module `tuff._tuff`. Paths in images are bytes here; the part in Python
//! accepts text as well.

mod build;
mod errors;
mod image;
mod interrupt;

use pyo3::prelude::*;

/// Native part of the package tuff.
#[pymodule]
fn _tuff(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<image::Image>()?;
    module.add_class::<image::Walk>()?;
    module.add_function(wrap_pyfunction!(build::build, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::add_to(module)
}
