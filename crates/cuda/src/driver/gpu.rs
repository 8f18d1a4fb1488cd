//! The GPUs of this machine.

use super::CudaError;
use super::api::{Attribute, DriverApi, Handle, NvmlApi, NvmlMemory, NvmlProcess};
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

/// Processes of a GPU that are listed at most.
const MOST_PROCESSES: usize = 64;

/// A GPU as its driver describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Its number: it is `cuda:N`.
    pub index: usize,
    /// Its name, like `NVIDIA H200`.
    pub name: String,
    /// Its unique identifier, as `nvidia-smi -L` prints it.
    pub uuid: String,
    /// Its compute capability, like (9, 0).
    pub capability: (u32, u32),
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Their clock in kHz.
    pub clock_khz: u32,
    /// Bytes a second from and to its memory, by clock and bus.
    pub memory_bytes_per_second: f64,
    /// Bytes of its memory.
    pub total_bytes: usize,
    /// Bytes of it that nobody holds, where the management library tells.
    pub free_bytes: Option<usize>,
    /// Who holds memory of it, where the management library tells.
    pub holders: Vec<Holder>,
}

/// A process that holds memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub process: u32,
    /// The bytes, where the driver tells.
    pub bytes: Option<u64>,
}

impl Gpu {
    /// Whether its tensor cores multiply TF32.
    pub fn has_tf32(&self) -> bool {
        self.capability >= (8, 0)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.process)?;
        match self.bytes {
            Some(bytes) => write!(f, " {} MiB", bytes >> 20),
            None => Ok(()),
        }
    }
}

impl Gpu {
    /// The GPUs of this machine.
    ///
    /// # Errors
    /// If there is no driver, or it fails.
    pub fn list() -> Result<Vec<Self>, CudaError> {
        (0..driver()?.count()?).map(Self::describe).collect()
    }

    /// A GPU by its number.
    pub fn describe(index: usize) -> Result<Self, CudaError> {
        let driver = driver()?;
        let count = driver.count()?;
        if index >= count {
            return Err(CudaError::NoDevice { index, count });
        }
        let device = driver.device(index)?;
        let mut name = [0 as c_char; 256];
        let mut uuid = [0_u8; 16];
        let mut total_bytes = 0;
        // SAFETY: the pointers are valid for what each function writes; the name's length is given.
        unsafe {
            driver.check("cuDeviceGetName", (driver.api.cuDeviceGetName)(name.as_mut_ptr(), 255, device))?;
            driver.check("cuDeviceGetUuid", (driver.api.cuDeviceGetUuid_v2)(&mut uuid, device))?;
            driver.check("cuDeviceTotalMem", (driver.api.cuDeviceTotalMem_v2)(&mut total_bytes, device))?;
        }
        // SAFETY: the buffer was zeroed and its last byte was not written: the name ends in it.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |which| driver.attribute(device, which);
        let uuid = in_words(uuid);
        let (free_bytes, holders) =
            memory(&uuid).map_or((None, Vec::new()), |(free, holders)| (Some(free), holders));
        Ok(Self {
            index,
            name,
            uuid,
            capability: (attribute(Attribute::CapabilityMajor)?, attribute(Attribute::CapabilityMinor)?),
            multiprocessors: attribute(Attribute::Multiprocessors)?,
            clock_khz: attribute(Attribute::ClockKhz)?,
            // Two transfers a clock.
            memory_bytes_per_second: 2.0
                * f64::from(attribute(Attribute::MemoryClockKhz)?)
                * 1e3
                * f64::from(attribute(Attribute::MemoryBusBits)?)
                / 8.0,
            total_bytes,
            free_bytes,
            holders,
        })
    }

    /// The GPU with the most free memory.
    pub fn with_most_free() -> Result<Self, CudaError> {
        let free = |gpu: &Self| gpu.free_bytes.unwrap_or(gpu.total_bytes);
        let gpus = Self::list()?;
        let best = gpus.into_iter().max_by_key(|gpu| (free(gpu), usize::MAX - gpu.index));
        best.ok_or(CudaError::NoDevice { index: 0, count: 0 })
    }

    /// The error where it is too full, which says who holds memory of it.
    pub(crate) fn full(&self, needed: usize, free: usize) -> CudaError {
        let own = std::process::id();
        let others = self.holders.iter().filter(|holder| holder.process != own);
        let others: Vec<String> = others.map(ToString::to_string).collect();
        let holders =
            if others.is_empty() { String::new() } else { format!("; held by {}", others.join(", ")) };
        CudaError::Full { index: self.index, needed, free, holders }
    }

    /// Bytes of its memory that somebody holds, where the management library tells.
    pub fn used_bytes(&self) -> Option<usize> {
        memory(&self.uuid).map(|(free, _)| self.total_bytes.saturating_sub(free))
    }
}

/// The oldest driver that is used, by the CUDA that it can run.
const OLDEST: (u32, u32) = (12, 8);

/// The newest CUDA that the driver can run, like `13.0`.
pub(crate) fn driver_version() -> Result<String, CudaError> {
    let (major, minor) = driver()?.version;
    Ok(format!("{major}.{minor}"))
}

/// The driver, initialized.
pub(crate) struct Driver {
    pub api: DriverApi,
    /// The newest CUDA that it can run.
    pub version: (u32, u32),
}

/// The driver of this machine.
pub(crate) fn driver() -> Result<&'static Driver, CudaError> {
    static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
    let loaded = DRIVER.get_or_init(|| {
        let api = DriverApi::load("the NVIDIA driver", &["libcuda.so.1", "nvcuda.dll"])?;
        let mut driver = Driver { api, version: (0, 0) };
        // SAFETY: the driver's functions may be called from any thread.
        driver.check("cuInit", unsafe { (driver.api.cuInit)(0) })?;
        let mut version = 0;
        // SAFETY: the pointer is valid.
        driver.check("cuDriverGetVersion", unsafe { (driver.api.cuDriverGetVersion)(&mut version) })?;
        let version = u32::try_from(version).unwrap_or(0);
        driver.version = (version / 1000, version % 1000 / 10);
        driver.runs(OLDEST)?;
        Ok(driver)
    });
    loaded.as_ref().map_err(Clone::clone)
}

impl Driver {
    /// Whether it can run code for a CUDA; an error that says so if it is older.
    pub fn runs(&self, needed: (u32, u32)) -> Result<(), CudaError> {
        let text = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        match self.version < needed {
            true => Err(CudaError::OldDriver { found: text(self.version), needed: text(needed) }),
            false => Ok(()),
        }
    }

    /// The error of a function that returned a code.
    pub fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let word = |look_up: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the pointer is valid; the text that is found is static.
            unsafe {
                look_up(code, &mut text);
                if text.is_null() {
                    String::new()
                } else {
                    CStr::from_ptr(text).to_string_lossy().into_owned()
                }
            }
        };
        let (name, words) = (word(self.api.cuGetErrorName), word(self.api.cuGetErrorString));
        Err(CudaError::Call { call, error: format!("{name} ({code}): {words}") })
    }

    fn count(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: the pointer is valid.
        self.check("cuDeviceGetCount", unsafe { (self.api.cuDeviceGetCount)(&mut count) })?;
        Ok(count.max(0) as usize)
    }

    /// The driver's number of a GPU.
    pub fn device(&self, index: usize) -> Result<c_int, CudaError> {
        let mut device = 0;
        // SAFETY: the pointer is valid.
        self.check("cuDeviceGet", unsafe { (self.api.cuDeviceGet)(&mut device, index as c_int) })?;
        Ok(device)
    }

    fn attribute(&self, device: c_int, which: Attribute) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: the pointer is valid.
        let code = unsafe { (self.api.cuDeviceGetAttribute)(&mut value, which as c_int, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value.max(0) as u32)
    }
}

/// An identifier as `nvidia-smi -L` prints it.
fn in_words(uuid: [u8; 16]) -> String {
    let mut words = String::from("GPU-");
    for (at, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            words.push('-');
        }
        words.push_str(&format!("{byte:02x}"));
    }
    words
}

/// What is free of a GPU's memory, and who holds the rest; none where the management library is missing or does not tell.
fn memory(uuid: &str) -> Option<(usize, Vec<Holder>)> {
    static NVML: OnceLock<Option<NvmlApi>> = OnceLock::new();
    let nvml = NVML.get_or_init(|| {
        let api = NvmlApi::load("NVML", &["libnvidia-ml.so.1", "nvml.dll"]).ok()?;
        // SAFETY: initializing it more than once is counted.
        (unsafe { (api.nvmlInit_v2)() } == 0).then_some(api)
    });
    let nvml = nvml.as_ref()?;
    let uuid = CString::new(uuid).ok()?;
    let mut handle: Handle = std::ptr::null_mut();
    let mut memory = NvmlMemory::default();
    let mut count = MOST_PROCESSES as u32;
    let none = NvmlProcess { pid: 0, used_bytes: 0, gpu_instance: 0, compute_instance: 0 };
    let mut processes = [none; MOST_PROCESSES];
    // SAFETY: the pointers are valid; the list's length is given.
    unsafe {
        if (nvml.nvmlDeviceGetHandleByUUID)(uuid.as_ptr(), &mut handle) != 0
            || (nvml.nvmlDeviceGetMemoryInfo)(handle, &mut memory) != 0
        {
            return None;
        }
        if (nvml.nvmlDeviceGetComputeRunningProcesses_v3)(handle, &mut count, processes.as_mut_ptr()) != 0 {
            count = 0;
        }
    }
    let holder = |p: &NvmlProcess| Holder {
        process: p.pid,
        // The driver says -1 where it does not know.
        bytes: Some(p.used_bytes).filter(|&bytes| bytes != u64::MAX),
    };
    let holders = processes.iter().take(count as usize).map(holder).collect();
    Some((memory.free as usize, holders))
}
