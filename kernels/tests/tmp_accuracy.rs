use sinew_kernels::case::Depth;
use sinew_kernels::{accuracy, attention, kv_append};
use sinew_memory::{Cpu, SimdLevel};
#[test]
fn all() {
    let depth = if std::env::var("SINEW_DEPTH").as_deref() == Ok("full") { Depth::Full } else { Depth::Quick };
    let mut bad = 0;
    for level in SimdLevel::ALL.into_iter().filter(|&l| l <= SimdLevel::detected()) {
        let device = Cpu::with(2, level).unwrap();
        for r in accuracy::verify(&attention::rows(), &device, depth).into_iter().chain(accuracy::verify(
            &kv_append::rows(),
            &device,
            depth,
        )) {
            println!(
                "{level} {} cases {} elements {} compared {} worst {:.2}",
                r.row, r.cases, r.elements, r.compared, r.worst
            );
            for f in &r.failures {
                println!("   {f}");
                bad += 1;
            }
        }
    }
    assert_eq!(bad, 0);
}
