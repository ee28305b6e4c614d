//! What is known of a device's speed: measured once, and kept for the user.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use sinew_memory::{Buffer, Bytes, Cpu, Device, Discovered, PrivateFolder};
use sinew_tensor::DType;

use super::fork_join::fork_join;
use super::peaks::{SETTLE, TRIES, copy_rate, copy_within, cpu, read_rate, read_span};
use super::{ArithmeticPeaks, Peaks};
use crate::gemm::{Gemm, GemmDynamic, GemmStatic, Rhs};
use crate::harness::accuracy::Run;
use crate::harness::case::{Case, Lay, Values};
use crate::{Compute, Error, Registry, Result};

/// Memory's rates with so many threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Threads that work at once; 1 on devices that are not CPUs.
    pub threads: usize,
    /// Bytes per second read; on devices that are not CPUs only copies are measured.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes per second of copies, those read and those written counted both.
    pub copy_bytes_per_s: f64,
}

/// How fast a device is, measured: for people. What kernel a problem gets never rests on it.
///
/// ```no_run
/// use sinew_kernels::rates::Description;
/// use sinew_memory::{Cpu, PrivateFolder};
///
/// // Measures for some seconds the first time, and reads what it kept from then on.
/// let description = Description::of(&Cpu::get(), &PrivateFolder::of_user("devices"))?;
/// println!("{description}");
/// # Ok::<(), sinew_kernels::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Memory's rates, by the number of threads.
    pub bandwidth: Vec<Bandwidth>,
    /// Arithmetic in registers by all threads of a CPU.
    pub arithmetic: Option<ArithmeticPeaks>,
    /// What products of large matrices reach on devices that are not CPUs, by the fastest row of this library.
    pub products: Option<ProductRates>,
    /// Seconds to start and join work in which all threads of a CPU take part; on other devices from a copy of a few
    /// bytes that is enqueued to its end.
    pub fork_join_s: f64,
}

/// Operations per second of products of large matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductRates {
    /// Of f32 operands.
    pub f32_flops_per_s: f64,
    /// Of bf16 operands, with f32 sums.
    pub bf16_flops_per_s: f64,
}

/// Rows, columns and length of the products that are timed: doubled until one takes this long.
const PRODUCT: std::ops::RangeInclusive<usize> = 128..=2048;
const PRODUCT_SECONDS: f64 = 0.02;

impl Description {
    /// What was kept of the device in `folder`, or what is measured now, in some seconds, and kept.
    ///
    /// # Errors
    /// Those of [`Description::measure`].
    pub fn of(device: &Arc<dyn Device>, folder: &PrivateFolder) -> Result<Self> {
        match Self::kept(device, folder) {
            Some(kept) => Ok(kept),
            None => Self::measure_and_keep(device, folder),
        }
    }

    /// What this version of the library kept of a device of this name, SIMD level and number of threads.
    pub fn kept(device: &Arc<dyn Device>, folder: &PrivateFolder) -> Option<Self> {
        Self::from_text(&folder.get(&file(device), &key(device))?)
    }

    /// What was kept of a GPU or an adapter that was only found, as it would be of the opened device. Of a CPU nothing:
    /// it is opened with a SIMD level and a number of threads, which costs nothing.
    pub fn kept_of_found(found: &Discovered, folder: &PrivateFolder) -> Option<Self> {
        let (file, key) = (gpu_file(&found.name), key_of(&found.hardware_words()?));
        Self::from_text(&folder.get(&file, &key)?)
    }

    /// Measures anew, and keeps that in place of what was kept.
    ///
    /// # Errors
    /// Those of [`Description::measure`].
    pub fn measure_and_keep(device: &Arc<dyn Device>, folder: &PrivateFolder) -> Result<Self> {
        let measured = Self::measure(device)?;
        folder.keep(&file(device), &key(device), measured.to_text().as_bytes());
        Ok(measured)
    }

    /// Measures a device: a CPU at its SIMD level and with its threads. Takes some seconds, and 1 GiB of a CPU's memory.
    ///
    /// # Errors
    /// Out of memory, or a failed device.
    pub fn measure(device: &Arc<dyn Device>) -> Result<Self> {
        let Some(cpu) = cpu(device) else { return measure_gpu(device) };
        let arithmetic = Peaks::measure(device)?.arithmetic;
        let (most, level) = (cpu.team().threads(), cpu.hardware().simd);
        let mut span = read_span(device)?;
        let mut bandwidth = Vec::new();
        for threads in counts(most) {
            let some = Cpu::with(threads, level)?;
            let cpu = self::cpu(&some).unwrap_or(cpu);
            bandwidth.push(Bandwidth {
                threads,
                read_bytes_per_s: Some(read_rate(cpu, &span, TRIES, SETTLE)?),
                copy_bytes_per_s: copy_within(cpu, &mut span, TRIES, SETTLE)?,
            });
        }
        Ok(Self { bandwidth, arithmetic, products: None, fork_join_s: fork_join(cpu.team(), |_| {}) })
    }

    /// The text that [`Description::from_text`] reads: a line for each limit, its name before its numbers.
    fn to_text(&self) -> String {
        let mut lines = Vec::new();
        for Bandwidth { threads, read_bytes_per_s, copy_bytes_per_s } in &self.bandwidth {
            let read = read_bytes_per_s.map_or("-".to_owned(), |read| format!("{read:?}"));
            lines.push(format!("memory {threads} {read} {copy_bytes_per_s:?}"));
        }
        if let Some(ArithmeticPeaks { f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s }) = self.arithmetic {
            lines.push(format!("arithmetic {f32_flops_per_s:?} {bf16_flops_per_s:?} {int8_ops_per_s:?}"));
        }
        if let Some(ProductRates { f32_flops_per_s, bf16_flops_per_s }) = self.products {
            lines.push(format!("products {f32_flops_per_s:?} {bf16_flops_per_s:?}"));
        }
        lines.push(format!("fork_join {:?}", self.fork_join_s));
        lines.join("\n")
    }

    /// Reads what [`Description::to_text`] wrote; `None` for any other text.
    fn from_text(text: &[u8]) -> Option<Self> {
        let (mut bandwidth, mut arithmetic, mut products, mut fork_join) = (Vec::new(), None, None, None);
        for line in std::str::from_utf8(text).ok()?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at)?.parse::<f64>().ok();
            match *words.first()? {
                "memory" => bandwidth.push(Bandwidth {
                    threads: words.get(1)?.parse().ok()?,
                    read_bytes_per_s: if words.get(2) == Some(&"-") { None } else { Some(number(2)?) },
                    copy_bytes_per_s: number(3)?,
                }),
                "arithmetic" => {
                    arithmetic = Some(ArithmeticPeaks {
                        f32_flops_per_s: number(1)?,
                        bf16_flops_per_s: number(2)?,
                        int8_ops_per_s: number(3)?,
                    });
                }
                "products" => {
                    products = Some(ProductRates { f32_flops_per_s: number(1)?, bf16_flops_per_s: number(2)? });
                }
                "fork_join" => fork_join = Some(number(1)?),
                _ => return None,
            }
        }
        Some(Self { bandwidth, arithmetic, products, fork_join_s: fork_join? })
    }

    /// The memory's rate with as many threads as were measured at most: read, where that is known.
    pub fn memory_bytes_per_s(&self) -> Option<f64> {
        self.bandwidth.last().map(|all| all.read_bytes_per_s.unwrap_or(all.copy_bytes_per_s))
    }
}

/// 1, 2, 4 … and all.
fn counts(most: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|power| 1 << power).take_while(|&threads| threads < most);
    powers.chain([most]).collect()
}

fn measure_gpu(device: &Arc<dyn Device>) -> Result<Description> {
    let stream = device.clone().stream()?;
    let (from, mut to) = (Buffer::uninitialised(device, 256)?, Buffer::uninitialised(device, 256)?);
    let mut copies = Vec::with_capacity(TRIES * TRIES);
    for _ in 0..TRIES * TRIES {
        let start = Instant::now();
        stream.copy(&from, 0, &mut to, 0, 256)?;
        stream.synchronize()?;
        copies.push(start.elapsed().as_secs_f64());
    }
    copies.sort_by(f64::total_cmp);
    let products = ProductRates {
        f32_flops_per_s: product_rate(device, DType::F32, Compute::F32)?,
        bf16_flops_per_s: product_rate(device, DType::BF16, Compute::Bf16)?,
    };
    Ok(Description {
        bandwidth: vec![Bandwidth { threads: 1, read_bytes_per_s: None, copy_bytes_per_s: copy_rate(device)? }],
        arithmetic: None,
        products: Some(products),
        fork_join_s: copies[copies.len() / 2],
    })
}

/// What the row that is predicted fastest reaches in a product of square matrices.
fn product_rate(device: &Arc<dyn Device>, dtype: DType, compute: Compute) -> Result<f64> {
    let (registry, stream) = (Registry::standard(), device.clone().stream()?);
    let mut size = *PRODUCT.start();
    loop {
        let (call, hardware) = (GemmDynamic { batch: 1, m: size }, device.hardware());
        let fixed = GemmStatic::new(size, size, dtype, Rhs::Strided(dtype), dtype, compute);
        let (rows, _) = registry.table::<Gemm>()?.candidates(&fixed, hardware);
        let own = rows.into_iter().filter(|row| !row.arithmetic.foreign);
        let cost = |row: &&_| -> f64 {
            let row: &crate::Row<Gemm> = row;
            (row.cost)(&fixed, &call, hardware)
        };
        let row = own.min_by(|a, b| cost(a).total_cmp(&cost(b))).ok_or_else(|| Error::NoKernel {
            operator: "gemm",
            problem: fixed.to_string(),
            device: device.id().to_string(),
            reasons: "no row of the table takes it".into(),
        })?;
        let case = Case { fixed, call, lay: Lay::Contiguous, values: Values::Repeating, seed: 0 };
        let mut run = Run::new(row, &case, &stream)?;
        // The first compiles.
        run.run()?;
        let mut seconds = f64::INFINITY;
        for _ in 0..TRIES {
            let start = Instant::now();
            run.run()?;
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        if seconds >= PRODUCT_SECONDS || size >= *PRODUCT.end() {
            return Ok(run.work.flops / seconds);
        }
        size *= 2;
    }
}

/// A file for each device that can be told from others.
fn file(device: &Arc<dyn Device>) -> String {
    let (name, hardware) = (device.id().to_string(), device.hardware());
    match cpu(device) {
        Some(_) => format!("{name}-{:?}-{}", hardware.simd, hardware.threads).to_lowercase(),
        None => gpu_file(&name),
    }
}

fn gpu_file(name: &str) -> String {
    name.replace(':', "-")
}

/// Of GPUs nothing but what is known of them before they are opened.
fn key(device: &Arc<dyn Device>) -> String {
    let hardware = device.hardware();
    match cpu(device) {
        Some(_) => key_of(&format!("{hardware}, caches {:?}", hardware.caches)),
        None => key_of(&hardware.to_string()),
    }
}

/// The number changes with what is measured.
fn key_of(hardware: &str) -> String {
    format!("description 3 of sinew {}: {hardware}", env!("CARGO_PKG_VERSION"))
}

/// A line for each kind of limit.
impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_s = |bytes: f64| format!("{}/s", Bytes(bytes as usize));
        for Bandwidth { threads, read_bytes_per_s, copy_bytes_per_s } in &self.bandwidth {
            let copy = per_s(*copy_bytes_per_s);
            match read_bytes_per_s {
                Some(read) => writeln!(f, "memory with {threads} threads: read {}, copied {copy}", per_s(*read))?,
                None => writeln!(f, "memory: copied {copy}")?,
            }
        }
        let giga = |rate: f64| format!("{:.0}", rate / 1e9);
        if let Some(ArithmeticPeaks { f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s }) = self.arithmetic {
            let [f32, bf16, int8] = [f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s].map(giga);
            writeln!(f, "arithmetic: f32 {f32} GFLOP/s, bf16 {bf16} GFLOP/s, int8 {int8} GOP/s")?;
        }
        if let Some(ProductRates { f32_flops_per_s, bf16_flops_per_s }) = self.products {
            let [f32, bf16] = [f32_flops_per_s, bf16_flops_per_s].map(giga);
            writeln!(f, "products: f32 {f32} GFLOP/s, bf16 {bf16} GFLOP/s")?;
        }
        match self.bandwidth.as_slice() {
            [Bandwidth { threads: 1, read_bytes_per_s: Some(_), .. }] => {
                write!(f, "start and join: none, the one thread does all")
            }
            _ => write!(f, "start and join: {:.1} µs", self.fork_join_s * 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::SimdLevel;

    use super::*;

    #[test]
    fn threads_are_counted_in_powers_of_two_and_all() {
        assert_eq!([counts(1), counts(2), counts(6)], [vec![1], vec![1, 2], vec![1, 2, 4, 6]]);
    }

    #[test]
    fn a_description_is_kept_for_its_device_alone() {
        let folder = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::at(folder.path());
        let [one, two] = [1, 2].map(|threads| Cpu::with(threads, SimdLevel::Portable).unwrap());
        assert_eq!(Description::kept(&one, &folder), None);
        let rate = Bandwidth { threads: 2, read_bytes_per_s: Some(2.5e9), copy_bytes_per_s: 1.0 / 3.0 };
        let arithmetic = Some(ArithmeticPeaks { f32_flops_per_s: 1e9, bf16_flops_per_s: 2e9, int8_ops_per_s: 4e9 });
        let made = Description { bandwidth: vec![rate], arithmetic, products: None, fork_join_s: 1.7e-6 };
        folder.keep(&file(&one), &key(&one), made.to_text().as_bytes());
        assert_eq!(Description::kept(&one, &folder).as_ref(), Some(&made));
        assert_eq!(made.memory_bytes_per_s(), Some(2.5e9));
        let products = Some(ProductRates { f32_flops_per_s: 0.1, bf16_flops_per_s: f64::MIN_POSITIVE });
        let gpu =
            Description { bandwidth: vec![Bandwidth { read_bytes_per_s: None, ..rate }], products, ..made.clone() };
        assert_eq!(Description::from_text(gpu.to_text().as_bytes()).as_ref(), Some(&gpu));
        for damaged in ["", "memory 2 1.0\nfork_join 1.0", "fork_join", "speed 1.0\nfork_join 1.0", "\u{fe}"] {
            assert_eq!(Description::from_text(damaged.as_bytes()), None, "{damaged}");
        }
        assert_eq!(Description::kept(&two, &folder), None);
        assert_eq!(Description::kept(&one, &PrivateFolder::none()), None);
        // In the place of another device's, under its own name.
        folder.keep(&file(&two), &key(&one), made.to_text().as_bytes());
        assert_eq!(Description::kept(&two, &folder), None);
        let text = made.to_string();
        assert!(text.contains("read 2.3 GiB/s") && text.contains("int8 4 GOP/s") && text.ends_with("1.7 µs"), "{text}");
        // A thread alone starts and joins no other.
        let alone = Description { bandwidth: vec![Bandwidth { threads: 1, ..rate }], ..made }.to_string();
        assert!(alone.contains("read 2.3 GiB/s") && !alone.contains("µs"), "{alone}");
    }

    #[test]
    fn what_was_kept_is_not_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::at(folder.path());
        let device = Cpu::with(1, SimdLevel::Portable).unwrap();
        let measured = Description::of(&device, &folder).unwrap();
        assert_eq!(measured.bandwidth.len(), 1);
        // No two measurements are the same in all digits.
        assert_eq!(Description::of(&device, &folder).unwrap(), measured);
    }
}
