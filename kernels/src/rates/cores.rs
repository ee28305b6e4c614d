//! What cores are known for that nothing but their maker and model tells before they run.

use std::sync::OnceLock;

/// What is known of a model of cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Known {
    /// How many times as many operations bf16 dot products do as f32 multiply-adds, in registers: 2, 1 or 0.5.
    ///
    /// Not measured as it runs: which arithmetic a problem gets rests on it, and that must be the same in every run,
    /// whatever else the machine does. It decides between the dot products' rows and those that widen to f32 or, of integer
    /// weights, hold activations in two bytes.
    pub bf16_ratio: f64,
    /// Whether a loop that multiplies what it reads in order as it is gains from asking for it ahead: Zen 5 reads up to a
    /// fifth faster with it, Zen 4 up to a quarter more slowly where memory is quick to answer.
    pub asks_ahead: bool,
    /// Whether few rows' weights are better asked for past the second and third cache, where these would not hold all of
    /// them: on Zen 5 a step of decoding is 1 to 13 % shorter.
    pub passes_caches: bool,
    /// Whether tiles of more than two rows are better multiplied with half a panel of blocks at a time, of each group one
    /// half behind the other: then every product reads its value of a row from memory by itself, where values in registers
    /// of their own serve both halves, and of up to eight rows registers are left for the sums. On Zen 4 eight rows in bf16
    /// take a fifth less time so, on Zen 5 a quarter more.
    pub halves_panels: bool,
}

/// What is known of this machine's.
pub(crate) fn known() -> &'static Known {
    static KNOWN: OnceLock<Known> = OnceLock::new();
    KNOWN.get_or_init(|| identity().map_or(Known::OF_OTHERS, |identity| Known::of(&identity)))
}

/// What a processor says of itself.
struct Identity {
    vendor: [u8; 12],
    family: u32,
    model: u32,
}

impl Known {
    /// Of models that were not measured.
    const OF_OTHERS: Self = Self { bf16_ratio: 1.0, asks_ahead: true, passes_caches: false, halves_panels: false };

    /// Measured where a model is named: the ratio in registers (`Peaks`).
    fn of(identity: &Identity) -> Self {
        match (&identity.vendor, identity.family, identity.model) {
            // Zen 4 (of family 0x19 the models that have bf16 dot products at all) and Zen 5: as many instructions, each of
            // two values.
            (b"AuthenticAMD", 0x19, _) => {
                Self { bf16_ratio: 2.0, asks_ahead: false, halves_panels: true, ..Self::OF_OTHERS }
            }
            (b"AuthenticAMD", 0x1a, _) => Self { bf16_ratio: 2.0, passes_caches: true, ..Self::OF_OTHERS },
            // Sapphire and Emerald Rapids: a quarter of the instructions. Widening to f32 is faster there, and of integer
            // weights VNNI.
            (b"GenuineIntel", 0x6, 0x8f | 0xcf) => Self { bf16_ratio: 0.5, ..Self::OF_OTHERS },
            _ => Self::OF_OTHERS,
        }
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
        let of = |vendor: &[u8; 12], version| Known::of(&Identity::new(*vendor, version)).bf16_ratio;
        // Genoa, Turin, Sapphire Rapids, Emerald Rapids, Cooper Lake, and a maker of which nothing is known.
        assert_eq!(of(b"AuthenticAMD", 0x00a1_0f11), 2.0);
        assert_eq!(of(b"AuthenticAMD", 0x00b0_0f21), 2.0);
        assert_eq!(of(b"GenuineIntel", 0x0008_06f8), 0.5);
        assert_eq!(of(b"GenuineIntel", 0x000c_06f2), 0.5);
        assert_eq!(of(b"GenuineIntel", 0x0005_065b), 1.0);
        assert_eq!(of(b"HygonGenuine", 0x00a1_0f11), 1.0);
    }

    #[test]
    fn what_is_known_is_the_same_whenever_it_is_asked_for() {
        assert_eq!(identity().map_or(Known::OF_OTHERS, |identity| Known::of(&identity)), *known());
        assert!([0.5, 1.0, 2.0].contains(&known().bf16_ratio));
    }
}
