//! Shared libraries, loaded at run time. Every function that is used is looked up when its library is loaded, so that a missing
//! library or function is an error there, and never later.

use super::CudaError;
use libloading::Library;
use std::error::Error;

/// Declares a library as a struct of its functions.
macro_rules! library {
    ($(#[$doc:meta])* $name:ident { $($function:ident($($argument:ty),* $(,)?) -> $result:ty;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the functions have the library's names")]
        pub(crate) struct $name {
            $(pub $function: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Dropped last.
            _library: libloading::Library,
        }

        impl $name {
            /// Loads the first library of these names that is found.
            pub fn load(what: &'static str, names: &[&str]) -> Result<Self, $crate::driver::CudaError> {
                let library = $crate::driver::library::open(what, names)?;
                Ok(Self {
                    $($function: {
                        let name = concat!(stringify!($function), "\0");
                        // SAFETY: the declaration has the function's signature.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> $result>(name.as_bytes()) };
                        *found.map_err(|_| $crate::driver::CudaError::Symbol { what, symbol: stringify!($function) })?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

pub(crate) use library;

/// Where libraries are that the system's loader does not find by itself.
const FOLDERS: [&str; 2] = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"];

/// Opens the first library of these names: where the loader looks, then where CUDA is usually installed.
pub(crate) fn open(what: &'static str, names: &[&str]) -> Result<Library, CudaError> {
    let paths = FOLDERS.iter().flat_map(|folder| names.iter().map(move |name| format!("{folder}/{name}")));
    let mut reason = String::new();
    for name in names.iter().map(ToString::to_string).chain(paths) {
        // SAFETY: NVIDIA's libraries may be loaded and unloaded at any time.
        match unsafe { Library::new(&name) } {
            Ok(library) => return Ok(library),
            Err(e) if reason.is_empty() => {
                reason = e.source().map_or_else(|| e.to_string(), ToString::to_string)
            }
            Err(_) => {}
        }
    }
    Err(CudaError::Library { what, name: names[0].to_string(), reason })
}
