//! The hardware's limits, measured: what a kernel's time is held against.

use std::sync::Arc;
use std::time::Instant;

use sinew_memory::{Buffer, Cpu, Device, DeviceKind, Hardware, SimdLevel, Team};

use super::loops::{self, FEW_SUMS, SUMS};
use super::predicted;
use crate::simd::{self, Kernel, Simd};
use crate::{Compute, Factors, Result};

/// Measured limits of a device, all its threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes of memory per second, of spans larger than the caches hold: read by a CPU; read and written, both counted,
    /// by copies on other devices.
    pub memory_bytes_per_s: f64,
    /// Arithmetic, on CPUs.
    pub arithmetic: Option<ArithmeticPeaks>,
}

/// Measured rates of arithmetic on registers only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArithmeticPeaks {
    /// f32 multiply-adds, each counted as two.
    pub f32_flops_per_s: f64,
    /// bf16 dot products with f32 sums, each multiply-add counted as two; the f32 rate where the CPU has no instruction
    /// for them.
    pub bf16_flops_per_s: f64,
    /// int8 multiply-adds with i32 sums, each counted as two; the f32 rate where the CPU has no instruction for them.
    pub int8_ops_per_s: f64,
}

impl ArithmeticPeaks {
    /// What rows predict their times by where nothing was measured, of all threads: with dot products of bf16 and int8
    /// where a CPU has instructions for them.
    pub fn estimated(hardware: &Hardware) -> Self {
        let threads = hardware.threads as f64;
        let [f32_flops_per_s, bf16] =
            [hardware.rates.f32_flops_per_s, hardware.rates.bf16_flops_per_s].map(|rate| rate * threads);
        let has = |level| hardware.kind == DeviceKind::CPU && hardware.simd >= level;
        let dots = if has(SimdLevel::Avx512Bf16) { predicted::bf16_rate(hardware) * threads } else { 0.0 };
        let bf16_flops_per_s = bf16.max(dots);
        let int8 = if has(SimdLevel::Avx512Vnni) { INT8_PER_F32 * f32_flops_per_s } else { 0.0 };
        Self { f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s: bf16_flops_per_s.max(int8) }
    }
}

/// Products of int8 that VNNI takes in the time of one of f32.
const INT8_PER_F32: f64 = 4.0;

/// Bytes read to measure bandwidth, at most: more than the last-level caches hold that one process gets a share of.
const READ_BYTES: usize = 1 << 30;
/// As often as this those that the last-level cache holds are read, however little memory is free.
const READ_CACHES: usize = 4;
/// Tries, of which the fastest counts: a limit is what the machine can do, not what its neighbours leave.
pub(super) const TRIES: usize = 5;
/// Seconds that tries go on for at least: a team's threads may begin on one core.
pub(super) const SETTLE: f64 = 0.2;
/// Seconds of [`Meter::glance`]'s tries.
const GLANCE: f64 = 0.03;
/// Parts of a span per thread, so that no thread waits for another's share of the memory.
const PARTS: usize = 8;
/// Rounds of a loop of arithmetic, long enough for a few milliseconds.
const ROUNDS: usize = 1 << 20;

/// Bytes of a copy on a device that is not a CPU, and copies that are timed together.
const COPY_BYTES: usize = 256 << 20;
const COPIES: usize = 4;

impl Peaks {
    /// Measures a device; a CPU at its SIMD level and with its threads. Takes one to two seconds and 1 GiB, or half of what
    /// is free.
    ///
    /// # Errors
    /// Out of memory, or a failed device.
    pub fn measure(device: &Arc<dyn Device>) -> Result<Self> {
        Meter::new(device)?.measure(TRIES, SETTLE)
    }

    /// The arithmetic limit of products with operands of a kind, where it was measured: of bf16 the faster of its dot
    /// products and f32, since bf16 operands may be multiplied in f32 as well, and with the integers of a packed weight as
    /// two bytes.
    pub fn flops_per_s(&self, factors: impl Into<Factors>) -> Option<f64> {
        let ArithmeticPeaks { f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s } = self.arithmetic?;
        let Factors { compute, integers } = factors.into();
        Some(match compute {
            Compute::Bf16 if integers => bf16_flops_per_s.max(f32_flops_per_s).max(int8_ops_per_s / 2.0),
            Compute::Bf16 => bf16_flops_per_s.max(f32_flops_per_s),
            Compute::F32 => f32_flops_per_s,
            Compute::Int8 => int8_ops_per_s,
        })
    }
}

/// Measures the limits of a device again and again: on a machine that others share they are not those of a minute ago.
///
/// ```
/// use sinew_kernels::rates::Meter;
/// use sinew_memory::Cpu;
///
/// let meter = Meter::new(&Cpu::get())?;
/// assert!(meter.glance()?.memory_bytes_per_s > 0.0);
/// # Ok::<(), sinew_kernels::Error>(())
/// ```
#[derive(Debug)]
pub struct Meter {
    device: Arc<dyn Device>,
    /// What a CPU reads.
    span: Option<Buffer>,
}

impl Meter {
    /// A meter of a device; of a CPU it holds 1 GiB, or half of what is free.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Arc<dyn Device>) -> Result<Self> {
        let span = cpu(device).map(|_| read_span(device)).transpose()?;
        Ok(Self { device: device.clone(), span })
    }

    /// The limits of this moment: of a CPU in 30 ms for each kind of arithmetic and one read of what the meter holds.
    ///
    /// # Errors
    /// Out of memory, or a failed device.
    pub fn glance(&self) -> Result<Peaks> {
        self.measure(1, GLANCE)
    }

    /// The best of `tries`, and of as many more as `settle` seconds hold, for each limit.
    fn measure(&self, tries: usize, settle: f64) -> Result<Peaks> {
        let (Some(cpu), Some(span)) = (cpu(&self.device), &self.span) else {
            return Ok(Peaks { memory_bytes_per_s: copy_rate(&self.device)?, arithmetic: None });
        };
        let (team, level) = (cpu.team(), cpu.hardware().simd);
        let wide = level >= SimdLevel::Avx512;
        let f32_flops_per_s = rate(team, tries, settle, |threads| {
            // SAFETY: the kernel touches registers only.
            unsafe {
                match wide {
                    true => simd::launch(level, team, threads, &MultiplyAdds::<SUMS>),
                    false => simd::launch(level, team, threads, &MultiplyAdds::<FEW_SUMS>),
                }
            }
            (2 * simd::LANES * if wide { SUMS } else { FEW_SUMS } * ROUNDS * threads) as f64
        });
        let bf16_flops_per_s = match level {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512Bf16 => rate(team, tries, settle, |threads| {
                // SAFETY: the level was detected when the device was made.
                team.run(threads, |_, _| unsafe { loops::x86::bf16_dots(ROUNDS) });
                (4 * simd::LANES * SUMS * ROUNDS * threads) as f64
            }),
            _ => f32_flops_per_s,
        };
        let int8_ops_per_s = match level {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => rate(team, tries, settle, |threads| {
                // SAFETY: as above.
                team.run(threads, |_, _| unsafe { loops::x86::int8_dots(ROUNDS) });
                (8 * simd::LANES * SUMS * ROUNDS * threads) as f64
            }),
            _ => f32_flops_per_s,
        };
        let memory_bytes_per_s = read_rate(cpu, span, tries, settle)?;
        let arithmetic = Some(ArithmeticPeaks { f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s });
        Ok(Peaks { memory_bytes_per_s, arithmetic })
    }
}

/// What a CPU reads: no more than half of what is free, so that there is room beside a model that just fits.
pub(super) fn read_span(device: &Arc<dyn Device>) -> Result<Buffer> {
    let bytes = span_bytes(device.memory()?.available, device.hardware().caches.l3);
    Ok(Buffer::uninitialised(device, bytes)?)
}

fn span_bytes(available: usize, l3: usize) -> usize {
    let bytes = READ_BYTES.min((available / 2).max(READ_CACHES * l3));
    bytes.next_multiple_of(size_of::<f32>())
}

/// The highest rate at which a CPU's threads together read a span, in bytes per second.
pub(super) fn read_rate(cpu: &Cpu, span: &Buffer, tries: usize, settle: f64) -> Result<f64> {
    let (team, level, span) = (cpu.team(), cpu.hardware().simd, span.as_slice::<f32>()?);
    Ok(rate(team, tries, settle, |threads| {
        let parts = threads * PARTS;
        let reader = Reader { start: span.as_ptr() as usize, len: span.len() / parts };
        // SAFETY: part `i` is `len` elements from element `i · len` on, within the span.
        unsafe { simd::launch(level, team, parts, &reader) };
        (reader.len * parts * size_of::<f32>()) as f64
    }))
}

/// The highest rate at which a CPU's threads together copy one half of a span to the other, in bytes per second, those
/// read and those written counted both.
pub(super) fn copy_within(cpu: &Cpu, span: &mut Buffer, tries: usize, settle: f64) -> Result<f64> {
    let (team, span) = (cpu.team(), span.as_mut_slice::<u8>()?);
    let (from, to) = span.split_at_mut(span.len() / 2);
    let (from, to) = (&*from, to.as_mut_ptr() as usize);
    Ok(rate(team, tries, settle, |threads| {
        let parts = threads * PARTS;
        let len = from.len() / parts;
        // SAFETY: part `i` is `len` bytes from byte `i · len` on of both halves, and no two tasks share one.
        team.run(parts, |i, _| unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr().add(i * len), (to as *mut u8).add(i * len), len);
        });
        (2 * len * parts) as f64
    }))
}

pub(super) fn cpu(device: &Arc<dyn Device>) -> Option<&Cpu> {
    let any: &dyn std::any::Any = &**device;
    any.downcast_ref()
}

/// The highest rate of copies within a device's memory, bytes read and bytes written counted both.
pub(super) fn copy_rate(device: &Arc<dyn Device>) -> Result<f64> {
    let stream = device.clone().stream()?;
    let room = device.memory()?.available / 4;
    let binding = device.hardware().accelerator.as_ref().map_or(COPY_BYTES, |a| a.max_binding_bytes);
    let bytes = COPY_BYTES.min(room).min(binding) & !255;
    let (from, mut to) = (Buffer::uninitialised(device, bytes)?, Buffer::uninitialised(device, bytes)?);
    let mut best = 0.0f64;
    for _ in 0..TRIES {
        stream.synchronize()?;
        let start = Instant::now();
        for _ in 0..COPIES {
            stream.copy(&from, 0, &mut to, 0, bytes)?;
        }
        stream.synchronize()?;
        best = best.max((2 * COPIES * bytes) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// The highest rate of `work`, which runs once on each thread and returns how much it did, in at least so many tries
/// and for at least `settle` seconds.
fn rate(team: &Team, tries: usize, settle: f64, work: impl Fn(usize) -> f64 + Send + Sync) -> f64 {
    let (mut best, begun) = (0.0f64, Instant::now());
    let mut done = 0;
    while done < tries || begun.elapsed().as_secs_f64() < settle {
        done += 1;
        let start = Instant::now();
        let amount = work(team.threads());
        best = best.max(amount / start.elapsed().as_secs_f64());
    }
    best
}

/// [`loops::multiply_adds`] to `N` sums.
struct MultiplyAdds<const N: usize>;

impl<const N: usize> Kernel for MultiplyAdds<N> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, _task: usize, _worker: usize) {
        // SAFETY: passed on.
        unsafe { loops::multiply_adds::<S, N>(ROUNDS) }
    }
}

/// Reads a part of a span.
struct Reader {
    start: usize,
    len: usize,
}

impl Kernel for Reader {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _worker: usize) {
        /// Vectors read in one step: several cache lines in flight.
        const STEP: usize = 8;
        // SAFETY: the caller states that this part of the span is readable.
        unsafe {
            let part = (self.start as *const f32).add(task * self.len);
            let mut sums = [S::splat(0.0); STEP];
            for at in (0..self.len / (STEP * simd::LANES) * STEP * simd::LANES).step_by(STEP * simd::LANES) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::add(*sum, S::load(part.add(at + i * simd::LANES)));
                }
            }
            for sum in sums {
                std::hint::black_box(S::reduce_add(sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::{Caches, DeviceId, Location, MemoryInfo, Storage, Stream};

    use super::*;

    /// The host, of whose memory little is free.
    #[derive(Debug)]
    struct Full {
        cpu: Arc<dyn Device>,
        hardware: Hardware,
        available: usize,
    }

    impl Device for Full {
        fn id(&self) -> DeviceId {
            self.cpu.id()
        }
        fn hardware(&self) -> &Hardware {
            &self.hardware
        }
        fn memory(&self) -> sinew_memory::Result<MemoryInfo> {
            Ok(MemoryInfo { total: READ_BYTES, available: self.available })
        }
        fn alignment(&self) -> usize {
            self.cpu.alignment()
        }
        fn location(&self) -> Location {
            self.cpu.location()
        }
        fn allocate(&self, bytes: usize) -> sinew_memory::Result<Arc<dyn Storage>> {
            self.cpu.allocate(bytes)
        }
        fn stream(self: Arc<Self>) -> sinew_memory::Result<Arc<dyn Stream>> {
            self.cpu.clone().stream()
        }
    }

    #[test]
    fn half_of_what_is_free_is_left_while_memory_is_measured() {
        const MIB: usize = 1 << 20;
        let cpu = Cpu::get();
        let hardware = Hardware { caches: Caches { l3: MIB, ..cpu.hardware().caches }, ..cpu.hardware().clone() };
        // However little is free, what is read is more than a cache holds.
        for (available, span) in [(30 * MIB, 15 * MIB), (30 * MIB + 6, 15 * MIB + 4), (6 * MIB, 4 * MIB)] {
            let device: Arc<dyn Device> = Arc::new(Full { cpu: cpu.clone(), hardware: hardware.clone(), available });
            assert_eq!(read_span(&device).unwrap().len(), span, "{available} bytes are free");
        }
        // Of much memory no more than is enough, and of large caches neither.
        assert_eq!([span_bytes(usize::MAX, MIB), span_bytes(MIB, READ_BYTES)], [READ_BYTES; 2]);
    }

    #[test]
    fn slow_dot_products_do_not_lower_the_limit_of_bf16() {
        let arithmetic =
            |bf16_flops_per_s| Some(ArithmeticPeaks { f32_flops_per_s: 2.0, bf16_flops_per_s, int8_ops_per_s: 6.0 });
        let peaks = |bf16| Peaks { memory_bytes_per_s: 1.0, arithmetic: arithmetic(bf16) };
        let limits = |factors| [1.0, 4.0].map(|bf16| peaks(bf16).flops_per_s(factors));
        assert_eq!(limits(Factors::from(Compute::Bf16)), [Some(2.0), Some(4.0)]);
        assert_eq!(limits(Factors { compute: Compute::Bf16, integers: true }), [Some(3.0), Some(4.0)]);
    }
}
