//! Host memory on both sides of the size from which it asks for huge pages.

use sinew_memory::{Buffer, Cpu, HOST_ALIGNMENT};

/// Whether the kernel was asked for huge pages at an address: the flag `hg` of its mapping.
#[cfg(target_os = "linux")]
fn asks_for_huge_pages(address: usize) -> bool {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut inside = false;
    for line in text.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let bound = |text| usize::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (bound(start), bound(end))) {
            inside = (start..end).contains(&address);
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.split_whitespace().any(|flag| flag == "hg");
        }
    }
    panic!("no mapping at {address:#x}");
}

#[test]
#[cfg(target_os = "linux")]
fn buffers_that_hold_huge_pages_ask_for_them_and_those_from_4_mib_on_are_rounded_to_them() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let all = [(4096, false), ((256 << 10) - 1, false), (2 << 20, true), ((4 << 20) - 1, true), ((5 << 20) + 3, true)];
    for (bytes, huge) in all {
        for allocate in [Buffer::uninitialised, Buffer::uninitialised_to_fill] {
            let buffer = allocate(&Cpu::get(), bytes).expect("memory");
            let address = buffer.host_ptr().expect("host memory").as_ptr() as usize;
            assert_eq!(asks_for_huge_pages(address + bytes / 2), huge, "{bytes} bytes");
            assert!(!huge || address.is_multiple_of(2 << 20), "huge pages need their alignment");
        }
    }
    let device: std::sync::Arc<dyn sinew_memory::Device> = Cpu::get();
    let held = |bytes| device.held_bytes(bytes);
    let sizes = [100, (256 << 10) + 1, (2 << 20) + 1, (5 << 20) + 3];
    assert_eq!(sizes.map(held), [128, (256 << 10) + 4096, (2 << 20) + 4096, 6 << 20]);
}

/// A figure of this process's memory, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: usize = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
    pages * 4096
}

/// In a test program of its own process, for which other tests' memory is too little to matter.
#[test]
#[cfg(target_os = "linux")]
fn memory_is_there_at_once_but_where_it_is_filled_first() {
    const BYTES: usize = 256 << 20;
    const SMALLER: usize = 1 << 20;
    let before = resident();
    let mut later = Buffer::uninitialised_to_fill(&Cpu::get(), BYTES).expect("memory");
    assert!(resident() < before + BYTES / 2, "the pages are there before they are written");
    assert!(later.as_mut_slice::<u8>().expect("one handle").iter().step_by(1 << 20).all(|&byte| byte == 0));
    later.as_mut_slice::<u8>().expect("one handle").fill(1);
    let smaller: Vec<Buffer> =
        (0..BYTES / SMALLER).map(|_| Buffer::uninitialised_to_fill(&Cpu::get(), SMALLER).expect("memory")).collect();
    let between = resident();
    assert!(between > before + BYTES / 2, "written pages are there");
    assert!(between < before + BYTES + BYTES / 2, "the pages of {} buffers are there", smaller.len());
    let now = Buffer::uninitialised(&Cpu::get(), BYTES).expect("memory");
    assert!(resident() > between + BYTES / 2, "the pages of {now:?} are not there");
}

#[test]
fn buffers_of_every_size_are_zeroed_aligned_and_hold_what_is_written() {
    for bytes in [
        0,
        1,
        63,
        4095,
        (256 << 10) - 1,
        256 << 10,
        (1 << 20) + 5,
        (2 << 20) + 1,
        (4 << 20) - 1,
        4 << 20,
        (4 << 20) + 1,
        33 << 20,
    ] {
        let mut buffer = Buffer::uninitialised(&Cpu::get(), bytes).expect("memory");
        assert_eq!(buffer.len(), bytes);
        assert!((buffer.host_ptr().expect("host memory").as_ptr() as usize).is_multiple_of(HOST_ALIGNMENT));
        let values = buffer.as_mut_slice::<u8>().expect("one handle");
        assert!(values.iter().all(|&value| value == 0));
        for (i, value) in values.iter_mut().enumerate() {
            *value = (i % 251) as u8;
        }
        assert!(buffer.as_slice::<u8>().expect("host memory").iter().enumerate().all(|(i, &v)| v == (i % 251) as u8));
    }
}

#[test]
fn more_memory_than_there_is_is_an_error() {
    for bytes in [1 << 50, isize::MAX as usize, usize::MAX] {
        assert!(matches!(Buffer::uninitialised(&Cpu::get(), bytes), Err(sinew_memory::Error::OutOfMemory { .. })));
    }
}
