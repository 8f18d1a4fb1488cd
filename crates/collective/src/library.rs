//! Finding and loading an MPI library.

use crate::MpiError;
use crate::abi::{Constants, Handle, Kind};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::error::Error;
use std::ffi::{OsString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

/// The environment variable that names the library to load.
pub const LIBRARY_VARIABLE: &str = "PLIMSOLL_MPI_LIBRARY";

/// Names of the libraries, by interface.
const NAMES: [(Kind, &[&str]); 3] = [
    (Kind::Standard, &["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.dylib"]),
    (Kind::OpenMpi, &["libmpi.so.40", "libmpi.40.dylib"]),
    (Kind::Mpich, &["libmpi.so.12", "libmpi.12.dylib", "libmpich.so.12"]),
];

/// Declares the functions of MPI that are used.
macro_rules! functions {
    ($($function:ident($($argument:ty),* $(,)?);)*) => {
        /// A library that was loaded. It stays loaded: MPI cannot be started twice in a process.
        #[allow(non_snake_case, reason = "the functions have the library's names")]
        pub(crate) struct Mpi {
            pub constants: Constants,
            $(pub $function: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Mpi {
            fn look_up(library: &'static Library, name: &str, kind: Kind) -> Result<Self, MpiError> {
                let missing = |symbol| MpiError::Symbol { library: name.to_string(), symbol };
                Ok(Self {
                    constants: Constants::of(kind, |symbol| {
                        // SAFETY: only the address of the variable is taken.
                        let found = unsafe { library.get::<*mut c_void>(symbol.as_bytes()) };
                        found.map(|variable| variable.as_raw_ptr().expose_provenance()).map_err(|_| missing(symbol))
                    })?,
                    $($function: {
                        // SAFETY: the declaration has the function's signature.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(stringify!($function).as_bytes())
                        };
                        *found.map_err(|_| missing(stringify!($function)))?
                    },)*
                })
            }
        }
    };
}

functions! {
    MPI_Init_thread(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    MPI_Finalize();
    MPI_Abort(Handle, c_int);
    MPI_Comm_rank(Handle, *mut c_int);
    MPI_Comm_size(Handle, *mut c_int);
    MPI_Comm_set_errhandler(Handle, Handle);
    MPI_Isend(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    MPI_Irecv(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    MPI_Iallreduce(*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    MPI_Test(*mut Handle, *mut c_int, *mut c_void);
    MPI_Cancel(*mut Handle);
    MPI_Error_string(c_int, *mut c_char, *mut c_int);
    MPI_Get_library_version(*mut c_char, *mut c_int);
}

impl Mpi {
    /// Loads the library that fits the launcher: the one that the environment names, or the first one found where the
    /// loader looks and beside the `mpirun` of the path.
    pub fn load() -> Result<Self, MpiError> {
        if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
            return Self::open(Path::new(&path), None);
        }
        // A launcher starts processes of its own library.
        let order = match std::env::var_os("OMPI_COMM_WORLD_SIZE") {
            Some(_) => [1, 0, 2],
            None => [0, 2, 1],
        };
        let mut reason = String::from("libmpi.so");
        for (kind, names) in order.map(|at| NAMES[at]) {
            let places = std::iter::once(PathBuf::new()).chain(beside_the_launcher());
            for path in places.flat_map(|folder| names.iter().map(move |name| folder.join(name))) {
                match Self::open(&path, Some(kind)) {
                    Err(MpiError::Library { reason: found }) => reason = found,
                    opened => return opened,
                }
            }
        }
        Err(MpiError::Library { reason })
    }

    /// Opens one library. Without a kind, its name or its variables tell.
    fn open(path: &Path, kind: Option<Kind>) -> Result<Self, MpiError> {
        // SAFETY: an MPI library runs no code of ours when it is loaded, and is never unloaded. Its plugins find it among the
        // global symbols.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|e| MpiError::Library {
            reason: e.source().map_or_else(|| e.to_string(), ToString::to_string),
        })?;
        let library: &'static Library = Box::leak(Box::new(library));
        let name = path.display().to_string();
        let kind = kind.unwrap_or_else(|| {
            // SAFETY: only whether the variable is there is asked for.
            let is_open_mpi = unsafe { library.get::<*mut c_void>(b"ompi_mpi_comm_world") }.is_ok();
            match path.file_name().and_then(|name| name.to_str()) {
                Some(name) if name.contains("mpi_abi") => Kind::Standard,
                _ if is_open_mpi => Kind::OpenMpi,
                _ => Kind::Mpich,
            }
        });
        Self::look_up(library, &name, kind)
    }
}

/// The folders of libraries beside every `mpirun` of the path.
fn beside_the_launcher() -> Vec<PathBuf> {
    let path: OsString = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| folder.join("mpirun").exists());
    folders.filter_map(|folder| Some(folder.parent()?.join("lib"))).collect()
}
