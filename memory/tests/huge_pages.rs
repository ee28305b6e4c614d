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
fn buffers_from_4_mib_on_ask_for_huge_pages_and_smaller_ones_are_plain() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    for (bytes, huge) in [(4096, false), ((4 << 20) - 1, false), (4 << 20, true), ((5 << 20) + 3, true)] {
        let buffer = Buffer::allocate(&Cpu::get(), bytes).expect("memory");
        let address = buffer.host_ptr().expect("host memory").as_ptr() as usize;
        assert_eq!(asks_for_huge_pages(address + bytes / 2), huge, "{bytes} bytes");
        assert!(!huge || address.is_multiple_of(2 << 20), "huge pages need their alignment");
    }
}

#[test]
fn buffers_of_every_size_are_zeroed_aligned_and_hold_what_is_written() {
    for bytes in [0, 1, 63, 4095, (2 << 20) + 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 33 << 20] {
        let mut buffer = Buffer::allocate(&Cpu::get(), bytes).expect("memory");
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
        assert!(matches!(Buffer::allocate(&Cpu::get(), bytes), Err(sinew_memory::Error::OutOfMemory { .. })));
    }
}
