//! A device from outside in the table of support.

use std::time::Duration;

use sinew_foreign_device::{Lagging, register};
use sinew_kernels::Registry;
use sinew_kernels::support::{StoredAs, Support};
use sinew_memory::Cpu;
use sinew_tensor::DType;

#[path = "../../common/support.rs"]
mod support;

#[test]
fn what_the_table_claims_of_a_foreign_device_runs_there() {
    let device = Lagging::new(0, Duration::from_micros(100));
    let mut registry = Registry::standard();
    register(&mut registry);
    let [supported, refused] = support::agrees_with_what_runs(&registry, &device);
    assert!(supported >= 5 && refused > supported, "{supported} and {refused}");
    let support = Support::of(&registry, [&Cpu::get(), &device]);
    let (name, cells) = &support.devices[1];
    assert_eq!(*name, device.id().to_string());
    let said = |operator: &str, dtype| {
        let cell = cells.iter().find(|cell| cell.operator == operator && cell.stored == StoredAs::Plain(dtype));
        cell.is_some_and(|cell| cell.is_supported())
    };
    let text = support.to_string();
    for (operator, dtype, is_said) in
        [("binary", DType::F32, true), ("binary", DType::I64, false), ("softmax", DType::F32, false)]
    {
        assert_eq!(said(operator, dtype), is_said, "{operator} of {dtype}: {text}");
    }
    let lines = || text.lines().filter(|line| line.contains("lagging:0"));
    assert!(lines().any(|line| line.starts_with("binary ") && line.contains("yes")), "{text}");
    assert!(lines().any(|line| line.starts_with("softmax ") && !line.contains("yes")), "{text}");
}
