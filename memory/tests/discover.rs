//! Discovery, and opening devices by name.

use sinew_memory::{DeviceKind, DeviceOptions, Error, Found, SimdLevel, discover, open};

fn of(threads: Option<usize>, simd: Option<SimdLevel>) -> DeviceOptions {
    DeviceOptions { threads, simd, ..DeviceOptions::default() }
}

#[test]
fn every_kind_of_device_is_found_or_has_a_reason() {
    let all = discover();
    for kind in [DeviceKind::CPU, DeviceKind::CUDA, DeviceKind::WGPU] {
        let of_kind: Vec<_> = all.iter().filter(|device| device.kind == kind).collect();
        assert!(!of_kind.is_empty(), "nothing is said of {kind}");
        for (index, device) in of_kind.iter().enumerate() {
            println!("{device}");
            match &device.found {
                Found::Nothing { reason } => {
                    assert!(!reason.is_empty() && !reason.contains('\n') && of_kind.len() == 1);
                    assert_eq!(device.name, kind.to_string());
                }
                Found::Host(_) => assert_eq!(device.name, "cpu"),
                _ => assert_eq!(device.name, format!("{kind}:{index}")),
            }
        }
    }
    let Found::Host(host) = &all[0].found else { panic!("the CPU comes first") };
    assert!(!host.name.is_empty() && host.cores >= 1 && host.threads >= 1);
    assert!(host.available_bytes <= host.total_bytes && host.total_bytes > 0);
    assert!(host.memory_limit_bytes.is_none_or(|limit| host.total_bytes <= limit));
    assert!(host.simd <= SimdLevel::detected());
}

#[test]
fn features_that_are_off_are_the_reason() {
    for (kind, on) in [(DeviceKind::CUDA, cfg!(feature = "cuda")), (DeviceKind::WGPU, cfg!(feature = "wgpu"))] {
        if !on {
            let all = discover();
            let found = all.iter().find(|device| device.kind == kind).map(|device| &device.found);
            let reason = format!("built without the `{kind}` feature");
            assert_eq!(found, Some(&Found::Nothing { reason }));
        }
    }
}

#[test]
fn cpu_opens_with_the_threads_and_the_level_that_are_asked() {
    let plain = open("cpu", &DeviceOptions::default()).expect("there is a CPU");
    assert_eq!(plain.id().to_string(), "cpu");
    let capped = open("cpu:0", &of(Some(2), Some(SimdLevel::Portable))).expect("there is a CPU");
    assert_eq!((capped.hardware().threads, capped.hardware().simd), (2, SimdLevel::Portable));
    assert!(matches!(open("cpu", &of(Some(0), None)), Err(Error::Invalid(_))));
    assert!(matches!(open("cpu", &of(Some(usize::MAX), None)), Err(Error::Invalid(_))));
}

#[test]
fn what_cannot_be_opened_is_one_line_that_says_why() {
    let names = ["", ":", "gpu", "CPU", "cpu:1", "cpu:", "cuda", "cuda:0", "cuda:999", "cuda:-1", "cuda:+1", "cuda:x"];
    for name in names.into_iter().chain(["wgpu:4096", "wgpu:99999999999999999999", "cuda:0:0"]) {
        let error = open(name, &DeviceOptions::default()).expect_err("no such device, or no kernels for it");
        let Error::NoDevice { name: said, reason } = &error else { panic!("{error}") };
        assert_eq!(said, name);
        assert!(!reason.is_empty());
        assert!(!error.to_string().contains('\n'), "{error}");
        println!("{error}");
    }
}
