//! What kernels are held against: cases of every operator with their f64 references, the accuracy of each row over them, and
//! trials that time rows in turn. Tests, benches, self-checks and tuning use it; rows themselves do not.

pub mod accuracy;
pub mod case;
pub(crate) mod strided_cases;
pub(crate) mod suite;
pub mod trial;
