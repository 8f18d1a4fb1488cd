//! What differs between the binary interfaces of MPI: the values of its constants.

use std::ffi::{c_int, c_void};

/// A handle of MPI. Open MPI and the standard interface have pointers, MPICH has integers of 32 bits, which are passed in the low half of
/// a register and stored in the low half of a word.
pub(crate) type Handle = usize;

#[cfg(target_endian = "big")]
compile_error!("MPICH's handles are read from the low half of a word");

/// Which interface a library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The standard's, of MPI 5.
    Standard,
    /// MPICH's, also of Intel MPI, MVAPICH and Cray MPI.
    Mpich,
    /// Open MPI's: its handles are addresses of the library's variables.
    OpenMpi,
}

/// The constants that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Constants {
    pub comm_world: Handle,
    pub byte: Handle,
    pub float: Handle,
    pub sum: Handle,
    /// In place of the numbers that a process adds to a sum: they lie where the result goes.
    pub in_place: *const c_void,
    pub errors_return: Handle,
    /// Where a status would be written that nobody reads.
    pub status_ignore: *mut c_void,
    /// The level of threads at which any thread may call, one at a time.
    pub thread_serialized: c_int,
}

// SAFETY: the pointers are constants, which are not followed.
unsafe impl Send for Constants {}
// SAFETY: as above.
unsafe impl Sync for Constants {}

impl Constants {
    /// Those of an interface; `address` finds a variable of the library.
    pub fn of<E>(kind: Kind, address: impl Fn(&'static str) -> Result<Handle, E>) -> Result<Self, E> {
        Ok(match kind {
            Kind::Standard => Self {
                comm_world: 0x101,
                byte: 0x247,
                float: 0x210,
                sum: 0x21,
                in_place: std::ptr::without_provenance(1),
                errors_return: 0x143,
                status_ignore: std::ptr::null_mut(),
                thread_serialized: 2048,
            },
            Kind::Mpich => Self {
                comm_world: 0x4400_0000,
                byte: 0x4c00_010d,
                float: 0x4c00_040a,
                sum: 0x5800_0003,
                in_place: std::ptr::without_provenance(usize::MAX),
                errors_return: 0x5400_0001,
                status_ignore: std::ptr::without_provenance_mut(1),
                thread_serialized: 2,
            },
            Kind::OpenMpi => Self {
                comm_world: address("ompi_mpi_comm_world")?,
                byte: address("ompi_mpi_byte")?,
                float: address("ompi_mpi_float")?,
                sum: address("ompi_mpi_op_sum")?,
                in_place: std::ptr::without_provenance(1),
                errors_return: address("ompi_mpi_errors_return")?,
                status_ignore: std::ptr::null_mut(),
                thread_serialized: 2,
            },
        })
    }
}
