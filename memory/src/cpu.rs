//! The host's processor as a device.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::hardware::Rates;
use crate::host::{HOST_ALIGNMENT, HostStorage};
use crate::stream::Completed;
use crate::system;
use crate::{
    Buffer, Device, DeviceId, DeviceKind, Error, Event, Hardware, Location, MemoryInfo, Result, SimdLevel, Storage,
    Stream, Team,
};

/// The host's processor: memory, a team of threads and a SIMD level.
///
/// [`Cpu::get`] is the machine as found, with the level capped by the variable `SINEW_SIMD` (`portable`, `avx2`,
/// `avx512`, `avx512vnni`, `avx512bf16`) where it is set; [`Cpu::with`] takes both by hand. The system places the
/// threads, unless [`Cpu::pinned`] asks for cores of their own.
#[derive(Debug)]
pub struct Cpu {
    hardware: Hardware,
    team: Team,
}

impl Cpu {
    /// The machine's CPU with as many threads as it may use. Made once.
    ///
    /// An unreadable `SINEW_SIMD` is ignored here; [`Cpu::with`] and the command report it.
    pub fn get() -> Arc<dyn Device> {
        Self::shared()
    }

    /// [`Cpu::get`] as the type that it is, for work on host memory.
    pub fn shared() -> Arc<Self> {
        static CPU: OnceLock<Arc<Cpu>> = OnceLock::new();
        CPU.get_or_init(|| {
            let level = level_from_environment().unwrap_or_else(|_| SimdLevel::detected());
            let team = Team::new(system::available_threads()).or_else(|_| Team::new(1));
            // One thread is the caller's own and cannot fail to start.
            let team = team.unwrap_or_else(|_| unreachable!("a team of one starts no thread"));
            Arc::new(Self { hardware: describe(level, team.threads()), team })
        })
        .clone()
    }

    /// A CPU device with its own team of `threads` threads and its SIMD level capped at `level`.
    ///
    /// # Errors
    /// Those of [`Team::new`].
    pub fn with(threads: usize, level: SimdLevel) -> Result<Arc<dyn Device>> {
        Ok(Self::of(Team::new(threads)?, level))
    }

    /// [`Cpu::with`] whose helper threads are each kept on a core of their own: [`Team::pinned`].
    ///
    /// # Errors
    /// Those of [`Team::pinned`].
    pub fn pinned(threads: usize, level: SimdLevel) -> Result<Arc<dyn Device>> {
        Ok(Self::of(Team::pinned(threads)?, level))
    }

    fn of(team: Team, level: SimdLevel) -> Arc<dyn Device> {
        Arc::new(Self { hardware: describe(level, team.threads()), team })
    }

    /// The team of threads.
    pub fn team(&self) -> &Team {
        &self.team
    }
}

/// The level that `SINEW_SIMD` asks for; the machine's where it is not set, or `auto`.
///
/// # Errors
/// [`Error::Invalid`] where the variable names no level.
pub fn level_from_environment() -> Result<SimdLevel> {
    match std::env::var("SINEW_SIMD") {
        Ok(name) if name != "auto" => Ok(name.parse::<SimdLevel>()?.min(SimdLevel::detected())),
        _ => Ok(SimdLevel::detected()),
    }
}

fn describe(level: SimdLevel, threads: usize) -> Hardware {
    let simd = level.min(SimdLevel::detected());
    let caches = system::caches();
    // Of the order of a 2023 server core at 2 to 4 GHz; only their ratios decide.
    let f32_flops_per_s = simd.f32_lanes() as f64 * 2.0 * 3.0e9;
    let rates = Rates {
        read_bytes_per_s: Hardware::read_rate(20e9, threads),
        f32_flops_per_s,
        bf16_flops_per_s: f32_flops_per_s,
        launch_s: 3e-6,
    };
    Hardware { kind: DeviceKind::CPU, name: system::cpu_name(), simd, threads, caches, rates, accelerator: None }
}

impl Cpu {
    fn allocate_pages(&self, bytes: usize) -> Result<Arc<HostStorage>> {
        let storage = HostStorage::new(bytes).ok_or_else(|| {
            let MemoryInfo { total, available } = system::memory();
            Error::OutOfMemory { device: self.id(), asked: bytes, available, total, holders: None, fits: available }
        })?;
        Ok(Arc::new(storage))
    }
}

impl Device for Cpu {
    fn id(&self) -> DeviceId {
        DeviceId { kind: DeviceKind::CPU, index: 0 }
    }
    fn hardware(&self) -> &Hardware {
        &self.hardware
    }
    fn memory(&self) -> Result<MemoryInfo> {
        Ok(system::memory())
    }
    fn alignment(&self) -> usize {
        HOST_ALIGNMENT
    }
    fn location(&self) -> Location {
        Location::Host
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Storage>> {
        let storage = self.allocate_pages(bytes)?;
        storage.touch(&self.team);
        Ok(storage)
    }
    fn allocate_to_fill(&self, bytes: usize) -> Result<Arc<dyn Storage>> {
        Ok(self.allocate_pages(bytes)?)
    }
    fn held_bytes(&self, bytes: usize) -> usize {
        HostStorage::held_bytes(bytes)
    }
    fn stream(self: Arc<Self>) -> Result<Arc<dyn Stream>> {
        let team = self.team.clone();
        Ok(Arc::new(CpuStream { device: self, team }))
    }
}

/// The CPU's stream: work runs at once, on the team.
#[derive(Debug)]
pub struct CpuStream {
    device: Arc<dyn Device>,
    team: Team,
}

impl CpuStream {
    /// The team of threads that kernels run on.
    pub fn team(&self) -> &Team {
        &self.team
    }
}

/// The host bytes of `buffer[offset..offset + len]`.
fn host_range(buffer: &Buffer, offset: usize, len: usize) -> Result<NonNull<u8>> {
    let end = offset.checked_add(len).filter(|&end| end <= buffer.len());
    if end.is_none() {
        return Err(Error::OutOfRange { start: offset, end: offset.saturating_add(len), len: buffer.len() });
    }
    let location = buffer.span().storage.location();
    let ptr = buffer.host_ptr().ok_or(Error::NotHostVisible { location, device: buffer.device().id() })?;
    // SAFETY: `offset` was just checked to lie within the buffer.
    Ok(unsafe { ptr.add(offset) })
}

impl Stream for CpuStream {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    fn upload(&self, src: &[u8], dst: &mut Buffer, offset: usize) -> Result<()> {
        dst.check_writable()?;
        let ptr = host_range(dst, offset, src.len())?;
        // SAFETY: the range was checked; `src` is a live slice, and `copy` allows an overlap.
        unsafe { std::ptr::copy(src.as_ptr(), ptr.as_ptr(), src.len()) };
        Ok(())
    }
    fn download(&self, src: &Buffer, offset: usize, dst: &mut [u8]) -> Result<()> {
        let ptr = host_range(src, offset, dst.len())?;
        // SAFETY: as in `upload`.
        unsafe { std::ptr::copy(ptr.as_ptr(), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }
    fn copy(&self, src: &Buffer, src_offset: usize, dst: &mut Buffer, dst_offset: usize, len: usize) -> Result<()> {
        dst.check_writable()?;
        let from = host_range(src, src_offset, len)?;
        let to = host_range(dst, dst_offset, len)?;
        // SAFETY: both ranges were checked, and `copy` allows an overlap.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), len) };
        Ok(())
    }
    fn record(&self) -> Result<Arc<dyn Event>> {
        Ok(Arc::new(Completed))
    }
    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        event.synchronize()
    }
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}
