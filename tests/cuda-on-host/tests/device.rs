//! The CUDA device on the host: memory, streams, events, and kernels that go wrong.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sinew_cuda_on_host::{Gxx, HostDriver};
use sinew_kernels::cuda::PRELUDE;
use sinew_memory::cuda::{CompileError, Compiler, CudaDevice, CudaModule, CudaStorage, CudaStream};
use sinew_memory::{Buffer, Device, Error, Location, Pool, PoolConfig, PrivateFolder, Result, Stream};

fn device() -> Option<Arc<dyn Device>> {
    sinew_cuda_on_host::device(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

static FAULTS: CudaModule =
    CudaModule { name: "faults", prelude: PRELUDE, source: include_str!("faults.cu"), ptx: &[] };

/// A parameter of every kernel in `faults.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    data: u64,
    status: u64,
    n: u64,
}

impl Params {
    fn bytes(&self) -> [u8; 24] {
        let words = [self.data, self.status, self.n].map(u64::to_ne_bytes);
        std::array::from_fn(|i| words[i / 8][i % 8])
    }
}

/// Runs a kernel of `faults.cu` over a buffer of floats, and gives what is in it then.
fn run(
    stream: &Arc<dyn Stream>,
    kernel: &'static str,
    grid: u32,
    block: u32,
    shared: u32,
    data: &[f32],
) -> Result<Vec<f32>> {
    run_of(&FAULTS, stream, kernel, [grid, block, shared], data)
}

/// The same with a module of that source.
fn run_of(
    module: &'static CudaModule,
    stream: &Arc<dyn Stream>,
    kernel: &'static str,
    [grid, block, shared]: [u32; 3],
    data: &[f32],
) -> Result<Vec<f32>> {
    let cuda = CudaStream::of(stream).unwrap();
    let mut buffer = Buffer::uninitialised(stream.device(), size_of_val(data))?;
    stream.upload(&data.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>(), &mut buffer, 0)?;
    let address = CudaStorage::of(&buffer.span().storage).unwrap().address();
    let params =
        Params { data: address, status: cuda.status(kernel, "{} is less than nothing")?, n: data.len() as u64 };
    buffer.record_use(stream);
    // SAFETY: the struct is that of `faults.cu`, and the driver catches what the kernels do wrong.
    unsafe { cuda.launch(module, kernel, [grid, 1, 1], block, shared, &params.bytes()) }?;
    let mut bytes = vec![0; size_of_val(data)];
    stream.download(&buffer, 0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|c| f32::from_ne_bytes([c[0], c[1], c[2], c[3]])).collect())
}

#[test]
fn bytes_come_back_as_they_were_uploaded_however_many_there_are() {
    let Some(device) = device() else { return };
    let stream = device.clone().stream().unwrap();
    let pattern = |len: usize, seed: usize| -> Vec<u8> { (0..len).map(|i| ((i + seed) * 31 % 251) as u8).collect() };
    // More than all pieces of the staging ring hold, and sizes around one piece.
    for len in [0, 1, 255, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, (9 << 20) + 5] {
        let mut buffer = Buffer::uninitialised(&device, len + 3).unwrap();
        let mut source = pattern(len, len);
        stream.upload(&source, &mut buffer, 3).unwrap();
        // The source may be reused at once.
        source.fill(0);
        let mut copy = Buffer::uninitialised(&device, len).unwrap();
        stream.copy(&buffer, 3, &mut copy, 0, len).unwrap();
        let mut back = vec![0; len];
        stream.download(&copy, 0, &mut back).unwrap();
        assert_eq!(back, pattern(len, len), "{len} bytes");
    }
    // Many small uploads, each from the same place.
    let mut buffer = Buffer::uninitialised(&device, 100).unwrap();
    for i in 0..100u8 {
        stream.upload(&[i], &mut buffer, usize::from(i)).unwrap();
    }
    let mut back = [0; 100];
    stream.download(&buffer, 0, &mut back).unwrap();
    assert_eq!(back.to_vec(), (0..100).collect::<Vec<u8>>());
}

#[test]
fn a_range_outside_or_a_buffer_of_another_device_is_refused() {
    let Some(device) = device() else { return };
    let stream = device.clone().stream().unwrap();
    let mut buffer = Buffer::uninitialised(&device, 8).unwrap();
    assert!(matches!(stream.upload(&[0; 4], &mut buffer, 5), Err(Error::OutOfRange { .. })));
    assert!(matches!(stream.download(&buffer, usize::MAX, &mut [0; 4]), Err(Error::OutOfRange { .. })));
    assert!(matches!(buffer.as_slice::<u8>(), Err(Error::NotHostVisible { .. })));
    let mut host = Buffer::uninitialised(&sinew_memory::Cpu::get(), 8).unwrap();
    let error = stream.upload(&[0; 4], &mut host, 0).unwrap_err().to_string();
    assert!(error.contains("another device"), "{error}");
    let shared = buffer.clone();
    assert!(matches!(stream.upload(&[0; 4], &mut buffer, 0), Err(Error::Shared { .. })));
    drop(shared);
}

#[test]
fn memory_that_is_not_there_is_an_error_with_numbers() {
    let Some(device) = device() else { return };
    let info = device.memory().unwrap();
    let Err(Error::OutOfMemory { asked, total, .. }) = device.allocate(info.total + 1) else { panic!("it was given") };
    assert_eq!((asked, total), (info.total + 1, info.total));
    let held = Buffer::uninitialised(&device, 1 << 20).unwrap();
    assert_eq!(device.memory().unwrap().available, info.available - (1 << 20));
    drop(held);
    assert_eq!(device.memory().unwrap().available, info.available);
}

#[test]
fn pinned_memory_is_reached_by_host_and_kernels_and_pools_hand_it_out() {
    let Some(device) = device() else { return };
    let stream = device.clone().stream().unwrap();
    let pinned = CudaDevice::of(&device).unwrap().pinned();
    assert_eq!((pinned.location(), pinned.id()), (Location::Pinned, device.id()));
    let pool = Pool::new(pinned, PoolConfig::default());
    let mut host = pool.uninitialised(1024).unwrap();
    host.as_mut_slice::<u32>().unwrap().iter_mut().enumerate().for_each(|(i, x)| *x = i as u32);
    let mut there = Buffer::uninitialised(&device, 1024).unwrap();
    stream.copy(&host, 0, &mut there, 0, 1024).unwrap();
    let mut back = pool.uninitialised(1024).unwrap();
    stream.copy(&there, 0, &mut back, 0, 1024).unwrap();
    // Looking at it waits for the copy.
    assert_eq!(back.as_slice::<u32>().unwrap(), host.as_slice::<u32>().unwrap());
}

#[test]
fn a_pool_hands_memory_out_again_only_behind_the_work_that_uses_it() {
    let Some(device) = device() else { return };
    let (stream, other) = (device.clone().stream().unwrap(), device.clone().stream().unwrap());
    let pool = Pool::new(device.clone(), PoolConfig::default());
    for round in 0..20u8 {
        let mut first = pool.uninitialised(1 << 20).unwrap();
        stream.upload(&vec![round; 1 << 20], &mut first, 0).unwrap();
        let event = stream.record().unwrap();
        let mut second = pool.uninitialised(1 << 20).unwrap();
        other.wait(&event).unwrap();
        other.copy(&first, 0, &mut second, 0, 1 << 20).unwrap();
        // Given up while the copy may still be waiting.
        drop(first);
        let mut third = pool.uninitialised(1 << 20).unwrap();
        stream.upload(&vec![!round; 1 << 20], &mut third, 0).unwrap();
        let mut back = vec![0; 1 << 20];
        other.download(&second, 0, &mut back).unwrap();
        assert!(back.iter().all(|&byte| byte == round), "round {round}");
    }
}

#[test]
fn events_are_complete_once_the_stream_has_passed_them() {
    let Some(device) = device() else { return };
    let stream = device.clone().stream().unwrap();
    let mut buffer = Buffer::uninitialised(&device, 4 << 20).unwrap();
    stream.upload(&vec![1; 4 << 20], &mut buffer, 0).unwrap();
    let event = stream.record().unwrap();
    event.synchronize().unwrap();
    assert!(event.is_complete());
}

/// Orders that CUDA leaves open and successive launches take.
const ORDERS: usize = 8;

/// Each value's row's sum, of rows of 256.
fn row_sums(data: &[f32]) -> Vec<f32> {
    data.chunks(256).flat_map(|row| [row.iter().sum(); 256]).collect()
}

#[test]
fn a_kernel_computes_and_shuffles_and_meets_at_barriers() {
    let Some(device) = device() else { return };
    let stream = device.clone().stream().unwrap();
    let data: Vec<f32> = (0..1024).map(|i| (i % 13) as f32).collect();
    for (kernel, grid, block, right) in [
        ("block_sums", 4, 256, row_sums(&data)),
        ("row_sums", 4, 256, row_sums(&data)),
        ("reverse_in_shared", 1, 1024, data.iter().rev().copied().collect()),
        ("copy_async", 1, 256, data.iter().map(|x| x + 1.0).collect()),
    ] {
        for _ in 0..ORDERS {
            assert_eq!(run(&stream, kernel, grid, block, 4096, &data).unwrap(), right, "{kernel}");
        }
    }
}

/// What a fault must be called: at least in one of the orders.
fn expect_error(stream: &Arc<dyn Stream>, kernel: &'static str, grid: u32, block: u32, words: &str) {
    let data = vec![1.0; 1024];
    let outcomes = (0..ORDERS).map(|_| run(stream, kernel, grid, block, 4096, &data));
    let errors: Vec<_> = outcomes.filter_map(Result::err).map(|error| error.to_string()).collect();
    assert!(
        !errors.is_empty() && errors.iter().all(|error| error.contains(words) && error.contains(kernel)),
        "{kernel}: {errors:?}"
    );
    // The stream goes on.
    run(stream, "block_sums", 4, 256, 0, &data).unwrap();
}

#[test]
fn kernels_that_go_wrong_are_errors_at_the_next_synchronisation_and_are_named() {
    let Some(device) = device() else { return };
    let stream = device.clone().stream().unwrap();
    expect_error(&stream, "divergent_barrier", 2, 64, "for ever");
    expect_error(&stream, "shuffle_with_the_absent", 1, 32, "for ever");
    expect_error(&stream, "writes_behind_the_end", 1, 32, "behind an allocation");
    expect_error(&stream, "writes_before_the_start", 1, 32, "before an allocation");
    expect_error(&stream, "copies_misaligned", 1, 32, "not aligned");
    expect_error(&stream, "other_parameters", 1, 32, "parameter has 32 bytes");
    expect_error(&stream, "few_threads", 1, 64, "compiled for 32");
    expect_error(&stream, "reports", 1, 32, ": -5 is less than nothing");
    let refused = run(&stream, "block_sums", 1, 2048, 0, &[0.0; 4]).unwrap_err().to_string();
    assert!(refused.contains("block_sums") && refused.contains("invalid argument"), "{refused}");
    let missing = run(&stream, "no_such_kernel", 1, 32, 0, &[0.0; 4]).unwrap_err().to_string();
    assert!(missing.contains("no_such_kernel"), "{missing}");
}

/// A kernel that forgets something gives NaN, or another result, in one of the orders.
#[test]
fn what_a_kernel_forgets_to_wait_for_shows() {
    let Some(device) = device() else { return };
    let stream = device.clone().stream().unwrap();
    let data: Vec<f32> = (0..1024).map(|i| i as f32).collect();
    for (kernel, grid, right) in [
        ("reverse_without_barrier", 1, data.iter().rev().copied().collect::<Vec<_>>()),
        // Warps do not wait for each other at what their own lanes wait for.
        ("row_sums_read_at_once", 4, row_sums(&data)),
        ("row_sums_written_over", 4, row_sums(&data)),
        ("copy_async_without_wait", 1, data.iter().map(|x| x + 1.0).collect()),
        ("reads_shared_unwritten", 1, data.clone()),
    ] {
        let wrong = (0..ORDERS).filter(|_| run(&stream, kernel, grid, 256, 4096, &data).unwrap() != right).count();
        assert!(wrong > 0, "{kernel} passed");
    }
}

/// Counts what it compiles, and takes a while.
#[derive(Debug)]
struct Counting {
    compiler: Gxx,
    compiled: AtomicUsize,
    running: AtomicUsize,
    most_at_once: AtomicUsize,
}

impl Compiler for Counting {
    fn describe(&self, architecture: &str) -> std::result::Result<String, String> {
        self.compiler.describe(architecture)
    }
    fn compile(&self, name: &str, source: &str, architecture: &str) -> std::result::Result<Vec<u8>, CompileError> {
        assert_eq!(architecture, "sm_80");
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let running = self.running.fetch_add(1, Ordering::AcqRel) + 1;
        self.most_at_once.fetch_max(running, Ordering::AcqRel);
        let image = self.compiler.compile(name, source, architecture);
        self.running.fetch_sub(1, Ordering::AcqRel);
        image
    }
}

#[test]
fn a_module_is_compiled_once_whoever_asks_and_modules_in_parallel() {
    let Ok(compiler) = Gxx::find() else { return };
    let [compiled, running, most_at_once] = Default::default();
    let compiler = Arc::new(Counting { compiler, compiled, running, most_at_once });
    static BROKEN: CudaModule = CudaModule { name: "broken", prelude: "", source: "this is no C++", ptx: &[] };
    static SMALL: [CudaModule; 2] = [
        CudaModule { name: "one", prelude: PRELUDE, source: "struct P { Ptr p; }; SINEW_KERNEL(one, P) {}", ptx: &[] },
        CudaModule { name: "two", prelude: PRELUDE, source: "struct P { Ptr p; }; SINEW_KERNEL(two, P) {}", ptx: &[] },
    ];
    let folder = tempfile::tempdir().unwrap();
    let open = || CudaDevice::new(HostDriver::new(), compiler.clone(), PrivateFolder::at(folder.path())).unwrap();
    let device = open();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| device.prefetch(&[&SMALL[0], &SMALL[1]]).unwrap());
        }
    });
    assert_eq!(compiler.compiled.load(Ordering::Relaxed), 2);
    assert_eq!(compiler.most_at_once.load(Ordering::Relaxed), 2);
    // Another device, or the next run, finds them on disk.
    open().prefetch(&[&SMALL[0], &SMALL[1]]).unwrap();
    assert_eq!(compiler.compiled.load(Ordering::Relaxed), 2);
    let error = device.prefetch(&[&SMALL[0], &BROKEN]).unwrap_err().to_string();
    assert!(error.contains("compiling broken") && error.contains("broken.cu:1"), "{error}");
}

/// Panics at every source.
#[derive(Debug)]
struct Panicking;

impl Compiler for Panicking {
    fn describe(&self, architecture: &str) -> std::result::Result<String, String> {
        Ok(architecture.into())
    }
    fn compile(&self, name: &str, _: &str, _: &str) -> std::result::Result<Vec<u8>, CompileError> {
        panic!("at {name}, as it should");
    }
}

#[test]
fn threads_of_the_compiler_that_panic_are_an_error() {
    static BOTH: [CudaModule; 2] = [
        CudaModule { name: "one", prelude: "", source: "", ptx: &[] },
        CudaModule { name: "two", prelude: "", source: "", ptx: &[] },
    ];
    let device = CudaDevice::new(HostDriver::new(), Arc::new(Panicking), PrivateFolder::none()).unwrap();
    let error = device.prefetch(&[&BOTH[0], &BOTH[1]]).unwrap_err().to_string();
    assert!(error.contains("compiling") && error.contains("panicked"), "{error}");
}

/// Fails in one way at every source.
#[derive(Debug)]
struct Failing(CompileError);

impl Compiler for Failing {
    fn describe(&self, architecture: &str) -> std::result::Result<String, String> {
        Ok(architecture.into())
    }
    fn compile(&self, _: &str, _: &str, _: &str) -> std::result::Result<Vec<u8>, CompileError> {
        Err(self.0.clone())
    }
}

#[test]
fn ptx_serves_where_the_compiler_fails_and_not_where_the_source_is_wrong() {
    if device().is_none() {
        return;
    }
    let CudaModule { name, prelude, source, .. } = FAULTS;
    // The driver on the host takes C++ for PTX.
    let ptx = FAULTS.pack(&FAULTS.text()).unwrap().leak();
    let module: &'static CudaModule = Box::leak(Box::new(CudaModule { name, prelude, source, ptx }));
    let sums = |error: CompileError, module| {
        let device = CudaDevice::new(HostDriver::new(), Arc::new(Failing(error)), PrivateFolder::none()).unwrap();
        let stream = device.stream().unwrap();
        run_of(module, &stream, "block_sums", [1, 256, 0], &[1.0; 256]).map_err(|error| error.to_string())
    };
    let incomplete = CompileError::Compiler("half of it is missing".into());
    assert_eq!(sums(incomplete.clone(), module).unwrap()[0], 256.0);
    let error = sums(incomplete, &FAULTS).unwrap_err();
    assert!(error.contains("compiling faults") && error.contains("half of it is missing"), "{error}");
    let error = sums(CompileError::Source("faults.cu:1: no".into()), module).unwrap_err();
    assert!(error.contains("compiling faults") && error.contains("faults.cu:1: no"), "{error}");
}

#[test]
fn a_gpu_that_is_too_old_is_refused_by_name_before_anything_is_compiled() {
    let open = |capability| {
        let driver = HostDriver::with_compute_capability(capability);
        CudaDevice::new(driver, Arc::new(Panicking), PrivateFolder::none()).map(|device| device.id().to_string())
    };
    let Error::NoDevice { name, reason } = open((7, 5)).unwrap_err() else { panic!("it is no device") };
    assert_eq!(name, "cuda:0");
    assert_eq!(reason, "needs compute capability 8.0, the GPU (CUDA on the host) has 7.5");
    assert!(open((6, 9)).is_err());
    for capability in [(8, 0), (8, 6), (9, 0), (12, 0)] {
        assert_eq!(open(capability).unwrap(), "cuda:0");
    }
}
