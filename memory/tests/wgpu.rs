//! The wgpu device, on whatever adapter there is.

#[path = "../../tests/common/harness.rs"]
mod harness;

use std::sync::Arc;

use sinew_memory::webgpu::{Binding, Counters, ShaderText, WgpuDevice, WgpuOptions, WgpuStream};
use sinew_memory::{
    Buffer, Device, DeviceKind, Error, Found, Location, Pool, PoolConfig, PrivateFolder, Stream, discover, open,
};

fn adapter() -> Arc<WgpuDevice> {
    WgpuDevice::open(0, &WgpuOptions::default()).unwrap()
}

fn streams(device: &Arc<WgpuDevice>) -> (Arc<dyn Device>, Arc<dyn Stream>) {
    (device.clone(), device.clone().stream().unwrap())
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Counts through a buffer of words: each becomes itself plus the parameter. Reports words above 1000.
fn add() -> ShaderText {
    let wgsl = "
        struct Params { number: u32, by: u32, count: u32 }
        @group(0) @binding(0) var<storage, read_write> x: array<u32>;
        @group(1) @binding(0) var<uniform> p: Params;
        @group(2) @binding(0) var<storage, read_write> status: array<atomic<u32>>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if (id.x >= p.count) { return; }
            x[id.x] += p.by;
            if (x[id.x] > 1000u) { atomicMax(&status[0], p.number); atomicStore(&status[1], x[id.x]); }
        }";
    ShaderText { wgsl: wgsl.into(), bindings: 1, reports: Some("index {} is outside its range") }
}

fn run_add(stream: &WgpuStream, buffer: &Buffer, by: u32) -> Result<(), Error> {
    // SAFETY: there is no loop and no division.
    let pipeline = unsafe { stream.wgpu().pipeline("add", &[], add) }?;
    let count = buffer.len() / 4;
    let binding = Binding::new(buffer, 0, buffer.len())?;
    stream.dispatch(&pipeline, &[binding], &[by, count as u32], [count.div_ceil(64).min(1024) as u32, 1, 1])
}

fn what_is_found_opens_by_name() {
    let found: Vec<_> = discover().into_iter().filter(|d| d.kind == DeviceKind::WGPU).collect();
    assert!(!found.is_empty());
    for found in found {
        let device = open(&found.name, &sinew_memory::DeviceOptions::default()).unwrap();
        assert_eq!(found.hardware_words(), Some(device.hardware().to_string()));
        assert_eq!((device.id().to_string(), device.location()), (found.name, Location::Device));
        let offers = device.hardware().accelerator.clone().unwrap();
        assert!(
            offers.workgroup_bytes >= 16 << 10 && offers.max_bindings >= 8 && offers.max_binding_bytes >= 128 << 20
        );
        assert!(device.memory().unwrap().total > 0);
    }
}

fn bytes_go_up_and_come_down_at_any_offset_and_length() {
    let device = adapter();
    let (device, stream) = streams(&device);
    for len in [0, 1, 3, 4, 5, 255, 256, 1001] {
        let mut buffer = Buffer::uninitialised(&device, len).unwrap();
        let mut want = bytes(len);
        stream.upload(&want, &mut buffer, 0).unwrap();
        for (offset, n) in [(1, 1), (3, 5), (5, 3), (2, 250), (7, 7), (4, 4), (6, 1)] {
            if offset + n <= len {
                let piece: Vec<u8> = (0..n).map(|i| 200 ^ i as u8).collect();
                stream.upload(&piece, &mut buffer, offset).unwrap();
                want[offset..offset + n].copy_from_slice(&piece);
                let mut back = vec![0; n];
                stream.download(&buffer, offset, &mut back).unwrap();
                assert_eq!(back, piece, "{len} {offset} {n}");
            }
        }
        let mut back = vec![0; len];
        stream.download(&buffer, 0, &mut back).unwrap();
        assert_eq!(back, want, "{len}");
        let past = stream.upload(&[0; 2], &mut buffer, len.saturating_sub(1)).unwrap_err();
        assert!(matches!(past, Error::OutOfRange { .. }));
    }
}

fn copies_are_right_within_one_storage_and_between_two_at_any_alignment() {
    let device = adapter();
    let (device, stream) = streams(&device);
    let pool = Pool::new(device.clone(), PoolConfig::default());
    let other = Buffer::uninitialised(&device, 700).unwrap();
    let mut same = pool.uninitialised(700).unwrap();
    let host = bytes(700);
    let mut source = pool.uninitialised(700).unwrap();
    stream.upload(&host, &mut source, 0).unwrap();
    let mut other = other;
    for (from, to, len) in [(0, 0, 700), (4, 8, 16), (1, 2, 3), (3, 1, 600), (5, 9, 4), (699, 0, 1), (0, 0, 0)] {
        for target in [&mut same, &mut other] {
            stream.upload(&vec![7; 700], target, 0).unwrap();
            stream.copy(&source, from, target, to, len).unwrap();
            let mut want = vec![7; 700];
            want[to..to + len].copy_from_slice(&host[from..from + len]);
            let mut back = vec![0; 700];
            stream.download(target, 0, &mut back).unwrap();
            assert_eq!(back, want, "{from} {to} {len}");
        }
    }
}

fn large_uploads_go_through_in_pieces() {
    let device = adapter();
    let (device, stream) = streams(&device);
    let host = bytes((40 << 20) + 3);
    let mut buffer = Buffer::uninitialised(&device, host.len()).unwrap();
    stream.upload(&host, &mut buffer, 0).unwrap();
    let mut back = vec![0; host.len()];
    stream.download(&buffer, 0, &mut back).unwrap();
    assert!(back == host);
    let held = WgpuStream::of(&stream).unwrap().counters().persistent_bytes;
    assert!(held < 64 << 20, "{held} bytes are held for {} uploaded", host.len());
}

fn a_step_is_one_submission_and_steps_grow_nothing() {
    let device = adapter();
    let (device, stream) = streams(&device);
    let wgpu = WgpuStream::of(&stream).unwrap();
    let mut a = Buffer::uninitialised(&device, 256).unwrap();
    let mut b = Buffer::uninitialised(&device, 256).unwrap();
    let mut step = |by: u32| {
        stream.upload(bytemuck::cast_slice(&[by; 64]), &mut a, 0).unwrap();
        run_add(wgpu, &a, 1).unwrap();
        stream.copy(&a, 0, &mut b, 0, 256).unwrap();
        run_add(wgpu, &b, 10).unwrap();
        // Bytes staged later must not be seen by what was recorded earlier.
        stream.upload(bytemuck::cast_slice(&[0u32; 64]), &mut a, 0).unwrap();
        let mut back = [0u32; 64];
        stream.download(&b, 0, bytemuck::cast_slice_mut(&mut back)).unwrap();
        assert_eq!(back, [by + 11; 64]);
    };
    step(0);
    let before = wgpu.counters();
    (1..=100).for_each(&mut step);
    let after = wgpu.counters();
    assert_eq!(after.submissions - before.submissions, 100);
    assert_eq!(after.dispatches - before.dispatches, 200);
    assert_eq!((after.bind_groups, after.pipelines), (before.bind_groups, before.pipelines));
    assert_eq!(after.persistent_bytes, before.persistent_bytes);
}

fn what_a_device_holds_for_itself_is_told_as_it_grows_and_goes() {
    let device = adapter();
    let (device, stream) = streams(&device);
    let held = || WgpuStream::of(&stream).unwrap().counters().persistent_bytes;
    let status = held();
    for len in [1 << 10, 1 << 20] {
        let mut buffer = Buffer::uninitialised(&device, len).unwrap();
        stream.upload(&vec![1; len], &mut buffer, 0).unwrap();
        stream.synchronize().unwrap();
    }
    assert_eq!(held(), status + (1 << 20), "a buffer for staging that was replaced still counts");
    let other = device.clone().stream().unwrap();
    assert_eq!(held(), 2 * status + (1 << 20));
    drop(other);
    assert_eq!(held(), status + (1 << 20));
}

fn no_more_memory_is_taken_than_allowed() {
    let device = WgpuDevice::open(0, &WgpuOptions { max_memory_bytes: 1 << 20, ..WgpuOptions::default() }).unwrap();
    let (dyn_device, stream) = streams(&device);
    let free = || device.memory().unwrap();
    assert_eq!((free().total, free().available), (1 << 20, (1 << 20) - 256));
    let most = Buffer::uninitialised(&dyn_device, free().available).unwrap();
    assert!(matches!(dyn_device.allocate(16), Err(Error::OutOfMemory { asked: 16, available: 0, fits: 0, .. })));
    assert!(dyn_device.clone().stream().is_err());
    drop((most, stream));
    assert_eq!(free().available, 1 << 20);
}

fn what_found_no_memory_is_done_when_there_is_some() {
    let device = WgpuDevice::open(0, &WgpuOptions { max_memory_bytes: 1 << 20, ..WgpuOptions::default() }).unwrap();
    let (dyn_device, stream) = streams(&device);
    let wgpu = WgpuStream::of(&stream).unwrap();
    let mut buffer = Buffer::uninitialised(&dyn_device, 256).unwrap();
    stream.upload(&[0; 256], &mut buffer, 0).unwrap();
    run_add(wgpu, &buffer, 3).unwrap();
    stream.synchronize().unwrap();
    let most = Buffer::uninitialised(&dyn_device, device.memory().unwrap().available).unwrap();
    // More kernels than the parameters have room for.
    let kernels = 300;
    for by in 0..kernels {
        run_add(wgpu, &buffer, by % 8).unwrap();
    }
    let event = stream.record().unwrap();
    for _ in 0..2 {
        let error = stream.synchronize().unwrap_err().to_string();
        assert_eq!(error, "parameters failed on wgpu:0: out of memory");
        assert!(!event.is_complete());
    }
    drop(most);
    let error = stream.synchronize().unwrap_err().to_string();
    let sum = 3 + (0..kernels).map(|by| by % 8).sum::<u32>();
    assert!(error.starts_with("add failed on wgpu:0") && error.contains(&sum.to_string()), "{error}");
    assert!(event.is_complete());
    let mut back = [0u32; 64];
    stream.download(&buffer, 0, bytemuck::cast_slice_mut(&mut back)).unwrap();
    assert_eq!(back, [sum; 64]);
}

fn what_was_refused_for_memory_does_not_run_later() {
    let device = WgpuDevice::open(0, &WgpuOptions { max_memory_bytes: 4 << 20, ..WgpuOptions::default() }).unwrap();
    let (dyn_device, stream) = streams(&device);
    let wgpu = WgpuStream::of(&stream).unwrap();
    let mut buffer = Buffer::uninitialised(&dyn_device, 256).unwrap();
    stream.upload(&[0; 256], &mut buffer, 0).unwrap();
    stream.synchronize().unwrap();
    let most = Buffer::uninitialised(&dyn_device, device.memory().unwrap().available).unwrap();
    let mut enqueued = 0_u32;
    let error = loop {
        match run_add(wgpu, &buffer, u32::from(enqueued.is_multiple_of(10))) {
            Ok(()) => enqueued += 1,
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("out of memory"), "{error}");
    assert!(run_add(wgpu, &buffer, 500).is_err());
    drop(most);
    let mut back = [0u32; 64];
    stream.download(&buffer, 0, bytemuck::cast_slice_mut(&mut back)).unwrap();
    assert_eq!(back, [enqueued.div_ceil(10); 64]);
}

fn a_bad_index_is_reported_once_by_its_kernel_to_its_own_stream() {
    let device = adapter();
    let (device, stream) = streams(&device);
    let other = device.clone().stream().unwrap();
    let mut buffer = Buffer::uninitialised(&device, 64).unwrap();
    stream.upload(&[0; 64], &mut buffer, 0).unwrap();
    run_add(WgpuStream::of(&stream).unwrap(), &buffer, 1234).unwrap();
    other.synchronize().unwrap();
    let error = stream.synchronize().unwrap_err().to_string();
    assert!(error.starts_with("add failed on wgpu:0") && error.contains("1234"), "{error}");
    stream.synchronize().unwrap();
    stream.upload(&[0; 64], &mut buffer, 0).unwrap();
    run_add(WgpuStream::of(&stream).unwrap(), &buffer, 5).unwrap();
    stream.synchronize().unwrap();
}

fn what_cannot_be_done_is_an_error_that_names_the_kernel() {
    let device = adapter();
    let broken = || ShaderText { wgsl: "@compute fn main() { nonsense }".into(), bindings: 1, reports: None };
    // SAFETY: it does not compile.
    let error = unsafe { device.pipeline("broken", &[], broken) }.unwrap_err().to_string();
    assert!(error.starts_with("broken failed on wgpu:0") && !error.contains('\n'), "{error}");

    let small = WgpuDevice::open(0, &WgpuOptions::least()).unwrap();
    let (dyn_small, stream) = streams(&small);
    let limit = small.hardware().accelerator.as_ref().unwrap().max_binding_bytes;
    let large = Buffer::uninitialised(&dyn_small, limit + 4).unwrap();
    let error = run_add(WgpuStream::of(&stream).unwrap(), &large, 1).unwrap_err().to_string();
    assert!(error.starts_with("add failed") && error.contains("at once"), "{error}");

    let (_, stream) = streams(&device);
    let error = run_add(WgpuStream::of(&stream).unwrap(), &large, 1).unwrap_err().to_string();
    assert!(error.contains("not memory of this"), "{error}");
    for bytes in [1 << 60, usize::MAX] {
        let Err(Error::TooLarge { asked, largest, .. }) = dyn_small.allocate(bytes) else { panic!("it was given") };
        assert_eq!((asked, largest), (bytes, 256 << 20));
    }
}

/// The numbers are those of the specification's table of limits.
fn the_least_that_webgpu_promises_is_the_most_that_such_a_device_takes() {
    let device = WgpuDevice::open(0, &WgpuOptions::least()).unwrap();
    let offers = device.hardware().accelerator.clone().unwrap();
    assert_eq!((offers.max_bindings, offers.max_binding_bytes), (8, 128 << 20));
    assert_eq!((offers.workgroup_threads, offers.workgroup_bytes), (256, 16 << 10));
    assert_eq!((offers.f16, offers.subgroup_size), (false, None));
    for (threads, fits) in [(256, true), (257, false)] {
        let text = || ShaderText {
            wgsl: format!(
                "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
                @compute @workgroup_size({threads}) fn main() {{ x[0] = 1u; }}"
            ),
            bindings: 1,
            reports: None,
        };
        // SAFETY: there is no loop and no division.
        let compiled = unsafe { device.pipeline("threads", &[threads], text) };
        assert_eq!(compiled.is_ok(), fits, "{threads} threads");
    }
}

fn dropped_memory_is_free_at_once_and_its_bind_groups_go() {
    let device = adapter();
    let (dyn_device, stream) = streams(&device);
    let persistent = || WgpuStream::of(&stream).unwrap().counters().persistent_bytes;
    let free = || device.memory().unwrap().available + persistent();
    let before = free();
    for by in 0..20 {
        let mut buffer = Buffer::uninitialised(&dyn_device, 1 << 20).unwrap();
        stream.upload(&vec![1; 1 << 20], &mut buffer, 0).unwrap();
        run_add(WgpuStream::of(&stream).unwrap(), &buffer, by).unwrap();
        assert_eq!(free(), before - (1 << 20));
    }
    assert_eq!(free(), before);
    // Words of ones are beyond what the kernel takes.
    assert!(stream.synchronize().is_err());
}

fn events_are_complete_when_their_work_is() {
    let device = adapter();
    let (device, stream) = streams(&device);
    let mut buffer = Buffer::uninitialised(&device, 1 << 16).unwrap();
    let nothing = stream.record().unwrap();
    assert!(nothing.is_complete());
    stream.upload(&vec![3; 1 << 16], &mut buffer, 0).unwrap();
    let event = stream.record().unwrap();
    // Nothing was submitted yet.
    assert!(!event.is_complete());
    let other = device.clone().stream().unwrap();
    other.wait(&event).unwrap();
    let mut back = vec![0; 16];
    other.download(&buffer, 0, &mut back).unwrap();
    assert_eq!(back, [3; 16]);
    event.synchronize().unwrap();
    assert!(event.is_complete());
}

/// Compiles a pipeline on the first adapter. What its device counted, which is gone then.
fn compile(cache: &PrivateFolder) -> Counters {
    let options = WgpuOptions { cache: cache.clone(), ..WgpuOptions::default() };
    let device = WgpuDevice::open(0, &options).unwrap();
    // SAFETY: there is no loop and no division.
    unsafe { device.pipeline("add", &[], add) }.unwrap();
    let stream = device.stream().unwrap();
    WgpuStream::of(&stream).unwrap().counters()
}

/// Software adapters keep a header and no pipeline, so that time or size would show nothing.
fn pipelines_are_compiled_with_what_the_last_device_left() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PrivateFolder::at(folder.path());
    let first = compile(&cache);
    let vulkan = |found: &Found| matches!(found, Found::Adapter(adapter) if adapter.backend == "vulkan");
    if !discover().iter().any(|device| device.name == "wgpu:0" && vulkan(&device.found)) {
        return println!("skipped: only Vulkan keeps pipelines");
    }
    assert_eq!((first.pipelines, first.cached_pipelines, first.cache_bytes), (1, 1, 0));
    let kept: usize =
        folder.path().read_dir().unwrap().map(|entry| entry.unwrap().metadata().unwrap().len() as usize).sum();
    let second = compile(&cache);
    assert_eq!((second.pipelines, second.cached_pipelines), (1, 1));
    assert!((1..kept).contains(&second.cache_bytes), "{} of {kept} bytes", second.cache_bytes);
    let none = compile(&PrivateFolder::none());
    assert_eq!((none.pipelines, none.cached_pipelines, none.cache_bytes), (1, 0, 0));
}

#[cfg(unix)]
fn a_kept_pipeline_that_is_not_the_users_or_not_whole_is_replaced() {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("kernels");
    let cache = PrivateFolder::at(&inner);
    let entries = || -> Vec<_> {
        fs::read_dir(&inner).map_or_else(|_| Vec::new(), |all| all.map(|entry| entry.unwrap().path()).collect())
    };
    compile(&cache);
    // An adapter without a cache keeps nothing.
    let Some(entry) = entries().pop() else { return };
    let is_sound = |why: &str| {
        assert_eq!(entries(), std::slice::from_ref(&entry), "{why}");
        let metadata = fs::symlink_metadata(&entry).unwrap();
        assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600, "{why}");
        assert!(fs::read(&entry).unwrap().starts_with(b"sinew-k1"), "{why}");
    };
    is_sound("new");
    let whole = fs::read(&entry).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", b"nonsense"] {
        fs::write(&entry, damaged).unwrap();
        compile(&cache);
        is_sound("damaged");
        assert!(fs::read(&entry).unwrap().len() > damaged.len());
    }
    fs::set_permissions(&entry, fs::Permissions::from_mode(0o666)).unwrap();
    compile(&cache);
    is_sound("others may write it");
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "another's").unwrap();
    fs::remove_file(&entry).unwrap();
    symlink(&elsewhere, &entry).unwrap();
    compile(&cache);
    is_sound("a link");
    assert_eq!(fs::read(&elsewhere).unwrap(), b"another's");
    let user = fs::metadata(&entry).unwrap().uid();
    if chown(&entry, Some(12_345), None).is_ok() {
        compile(&cache);
        is_sound("another user's");
        assert_eq!(fs::metadata(&entry).unwrap().uid(), user);
    }
    compile(&PrivateFolder::none());
}

fn main() -> std::process::ExitCode {
    harness::run(
        Vec::new(),
        harness::trials![
            what_is_found_opens_by_name,
            bytes_go_up_and_come_down_at_any_offset_and_length,
            copies_are_right_within_one_storage_and_between_two_at_any_alignment,
            large_uploads_go_through_in_pieces,
            a_step_is_one_submission_and_steps_grow_nothing,
            what_a_device_holds_for_itself_is_told_as_it_grows_and_goes,
            no_more_memory_is_taken_than_allowed,
            what_found_no_memory_is_done_when_there_is_some,
            what_was_refused_for_memory_does_not_run_later,
            a_bad_index_is_reported_once_by_its_kernel_to_its_own_stream,
            what_cannot_be_done_is_an_error_that_names_the_kernel,
            the_least_that_webgpu_promises_is_the_most_that_such_a_device_takes,
            dropped_memory_is_free_at_once_and_its_bind_groups_go,
            events_are_complete_when_their_work_is,
            pipelines_are_compiled_with_what_the_last_device_left,
            #[cfg(unix)]
            a_kept_pipeline_that_is_not_the_users_or_not_whole_is_replaced,
        ],
    )
}
