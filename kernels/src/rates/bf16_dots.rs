//! How fast the bf16 dot products of a CPU are, which nothing but its maker and model tells before it runs.

use std::sync::OnceLock;

/// How many times as many operations bf16 dot products do as f32 multiply-adds, in registers: 2, 1 or 0.5.
///
/// By maker and model, and not measured: which arithmetic a problem gets rests on it, and that must be the same in every
/// run, whatever else the machine does. It decides between the dot products' rows and those that widen to f32.
pub(crate) fn bf16_ratio() -> f64 {
    static RATIO: OnceLock<f64> = OnceLock::new();
    *RATIO.get_or_init(|| identity().map_or(1.0, |identity| ratio(&identity)))
}

/// What a processor says of itself.
struct Identity {
    vendor: [u8; 12],
    family: u32,
    model: u32,
}

/// Measured in registers where a model is named (`Peaks`); 1 of those that were not.
fn ratio(identity: &Identity) -> f64 {
    match (&identity.vendor, identity.family, identity.model) {
        // Zen 4 (of family 0x19 the models that have the instructions at all) and Zen 5: as many instructions, each of
        // two values.
        (b"AuthenticAMD", 0x19 | 0x1a, _) => 2.0,
        // Sapphire and Emerald Rapids: a quarter of the instructions. Widening to f32 is faster there.
        (b"GenuineIntel", 0x6, 0x8f | 0xcf) => 0.5,
        _ => 1.0,
    }
}

#[cfg(target_arch = "x86_64")]
fn identity() -> Option<Identity> {
    use std::arch::x86_64::__cpuid;

    let leaf = __cpuid(0);
    if leaf.eax < 1 {
        return None;
    }
    let mut vendor = [0; 12];
    for (to, word) in vendor.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    Some(Identity::new(vendor, __cpuid(1).eax))
}

#[cfg(not(target_arch = "x86_64"))]
fn identity() -> Option<Identity> {
    None
}

impl Identity {
    /// From the version word of CPUID's leaf 1: the extended fields count where the short ones are full.
    fn new(vendor: [u8; 12], version: u32) -> Self {
        let (family, model) = (version >> 8 & 0xf, version >> 4 & 0xf);
        let extended_model = if matches!(family, 0x6 | 0xf) { version >> 16 & 0xf } else { 0 };
        let extended_family = if family == 0xf { version >> 20 & 0xff } else { 0 };
        Self { vendor, family: family + extended_family, model: extended_model << 4 | model }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_told_apart_by_the_word_that_they_give() {
        let of = |vendor: &[u8; 12], version| ratio(&Identity::new(*vendor, version));
        // Genoa, Turin, Sapphire Rapids, Emerald Rapids, Cooper Lake, and a maker of which nothing is known.
        assert_eq!(of(b"AuthenticAMD", 0x00a1_0f11), 2.0);
        assert_eq!(of(b"AuthenticAMD", 0x00b0_0f21), 2.0);
        assert_eq!(of(b"GenuineIntel", 0x0008_06f8), 0.5);
        assert_eq!(of(b"GenuineIntel", 0x000c_06f2), 0.5);
        assert_eq!(of(b"GenuineIntel", 0x0005_065b), 1.0);
        assert_eq!(of(b"HygonGenuine", 0x00a1_0f11), 1.0);
    }

    #[test]
    fn the_ratio_is_the_same_whenever_it_is_asked_for() {
        assert_eq!(identity().map_or(1.0, |identity| ratio(&identity)), bf16_ratio());
        assert!([0.5, 1.0, 2.0].contains(&bf16_ratio()));
    }
}
