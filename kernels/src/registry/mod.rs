//! The registry of all tables.

mod queries;
mod standard;

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use sinew_memory::messages::{self, Severity};
use sinew_memory::{Device, DeviceKind, Hardware, Stream};

use crate::harness::accuracy::{self, RowReport, Run};
use crate::harness::case::{Depth, Reference};
use crate::harness::trial::Trial;
use crate::operator::{Operator, Row, refuse};
use crate::simd;
use crate::support::cell::{self, Cell};
use crate::support::stored::StoredAs;
use crate::table::Table;
use crate::{Error, Result};

#[cfg(feature = "cuda")]
pub use standard::CUDA_MODULES;

/// A table without its operator's types: what walks all tables.
pub trait AnyTable: Send + Sync {
    /// The operator's name.
    fn operator(&self) -> &'static str;
    /// Name, device and arithmetic of each row.
    fn row_names(&self) -> Vec<(&'static str, DeviceKind, &'static str)>;
    /// Checks every row that runs on `device` against the reference, over the operator's cases.
    fn verify(&self, device: &Arc<dyn Device>, depth: Depth) -> Vec<RowReport>;
    /// Every row with every case that it takes on `device`, ready to be timed.
    fn runs(&self, device: &Arc<dyn Device>, depth: Depth) -> Result<Vec<Run>>;
    /// Checks a row on `device`, over a few cases or on one problem, `(O::Static, O::Dynamic)`. See
    /// [`Registry::self_check`].
    fn self_check(&self, row: &str, problem: Option<&dyn Any>, device: &Arc<dyn Device>) -> Result<(), String>;
    /// What this hardware does with a small problem of each way in which an operand may be stored.
    fn support(&self, hardware: &Hardware) -> Vec<Cell>;
    /// Runs a [cell](AnyTable::support)'s problem with every row of the device, those that refuse it too: a report of
    /// each, in which a refusal is a failure.
    fn try_stored(&self, stored: StoredAs, device: &Arc<dyn Device>) -> Vec<RowReport>;
    /// A problem, `(O::Static, O::Dynamic)`, ready to be timed on a stream with each row that takes it.
    ///
    /// # Errors
    /// A problem of another operator, or operands that cannot be made.
    fn trial(&self, problem: &dyn Any, stream: &Arc<dyn Stream>) -> Result<Trial>;
    /// The typed table.
    fn as_any(&self) -> &dyn Any;
    /// The typed table, to add rows.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<O: Reference> AnyTable for Table<O> {
    fn operator(&self) -> &'static str {
        O::NAME
    }
    fn row_names(&self) -> Vec<(&'static str, DeviceKind, &'static str)> {
        let mut names = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            names.push((row.name, row.device, row.arithmetic.name));
        }
        names
    }
    fn verify(&self, device: &Arc<dyn Device>, depth: Depth) -> Vec<RowReport> {
        accuracy::verify(&self.rows, device, depth)
    }
    fn runs(&self, device: &Arc<dyn Device>, depth: Depth) -> Result<Vec<Run>> {
        accuracy::runs(&self.rows, device, depth)
    }
    fn self_check(&self, row: &str, problem: Option<&dyn Any>, device: &Arc<dyn Device>) -> Result<(), String> {
        let row = self.rows.iter().find(|r| r.name == row).ok_or_else(|| format!("there is no row {row}"))?;
        match problem {
            None => accuracy::self_check(row, device),
            Some(problem) => {
                let problem = problem.downcast_ref::<(O::Static, O::Dynamic)>();
                let (fixed, call) = problem.ok_or_else(|| format!("the problem is none of {}", O::NAME))?;
                accuracy::check_problem(row, fixed, *call, device)
            }
        }
    }
    fn support(&self, hardware: &Hardware) -> Vec<Cell> {
        cell::cells(self, hardware)
    }
    fn try_stored(&self, stored: StoredAs, device: &Arc<dyn Device>) -> Vec<RowReport> {
        cell::try_stored(self, stored, device)
    }
    fn trial(&self, problem: &dyn Any, stream: &Arc<dyn Stream>) -> Result<Trial> {
        let problem = problem.downcast_ref::<(O::Static, O::Dynamic)>();
        let (fixed, call) = problem.ok_or_else(|| refuse(O::NAME, "the problem is another operator's"))?;
        Trial::new(self, fixed, call, stream)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// All operators and their rows.
///
/// [`Registry::standard`] holds Sinew's own. A crate outside adds rows, or whole operators, before it makes a context.
#[derive(Default)]
pub struct Registry {
    tables: HashMap<TypeId, Box<dyn AnyTable>>,
    order: Vec<TypeId>,
    preparations: Vec<Preparation>,
}

/// Makes ready on a device what rows would wait for at their first use; nothing on a device that is not theirs.
pub type Preparation = fn(&Arc<dyn Device>) -> Result<()>;

impl Registry {
    /// A registry without operators.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Adds an operator with its rows; rows of an operator that is there already join its table.
    pub fn add<O: Reference>(&mut self, rows: impl IntoIterator<Item = Row<O>>) -> &mut Self {
        simd::prepare_unoptimised();
        let id = TypeId::of::<O>();
        let table = self.tables.entry(id).or_insert_with(|| {
            self.order.push(id);
            Box::new(Table::<O>::new([]))
        });
        if let Some(table) = table.as_any_mut().downcast_mut::<Table<O>>() {
            table.rows.extend(rows);
        }
        self
    }

    /// The table of an operator.
    ///
    /// # Errors
    /// [`Error::NoKernel`] where the operator was never added.
    pub fn table<O: Operator>(&self) -> Result<&Table<O>> {
        self.tables.get(&TypeId::of::<O>()).and_then(|table| table.as_any().downcast_ref()).ok_or_else(|| {
            Error::NoKernel {
                operator: O::NAME,
                problem: "any problem".into(),
                device: "any device".into(),
                reasons: "the operator is not in the registry".into(),
            }
        })
    }

    /// Checks a row against the reference over a few cases on a device where [`accuracy::is_unconfirmed`] rows run: a
    /// kernel that was never seen right there does not serve a model unchecked.
    ///
    /// # Errors
    /// The first thing that was wrong, in words.
    pub fn self_check<O: Operator>(&self, row: &str, device: &Arc<dyn Device>) -> Result<(), String> {
        self.any_table::<O>()?.self_check(row, None, device)
    }

    /// The same on the very problem that the row is to solve, or where that is large on a [smaller](Reference::smaller)
    /// one of the same dtypes and options; on none where there is no smaller one.
    ///
    /// # Errors
    /// The first thing that was wrong, in words.
    pub fn check_problem<O: Operator>(
        &self,
        row: &str,
        fixed: &O::Static,
        call: O::Dynamic,
        device: &Arc<dyn Device>,
    ) -> Result<(), String> {
        self.any_table::<O>()?.self_check(row, Some(&(fixed.clone(), call)), device)
    }

    fn any_table<O: Operator>(&self) -> Result<&dyn AnyTable, String> {
        let table = self.tables.get(&TypeId::of::<O>());
        table.map(|table| &**table).ok_or_else(|| format!("{} is not in the registry", O::NAME))
    }

    /// Adds what [`Registry::prefetch`] does.
    pub fn add_preparation(&mut self, preparation: Preparation) -> &mut Self {
        self.preparations.push(preparation);
        self
    }

    /// Makes ready on a device what rows would wait for at their first use, such as kernels to be compiled.
    ///
    /// # Errors
    /// A kernel that cannot be compiled.
    pub fn prefetch(&self, device: &Arc<dyn Device>) -> Result<()> {
        self.preparations.iter().try_for_each(|prepare| prepare(device))?;
        messages::send(Severity::Debug, format_args!("kernels are ready on {}", device.id()));
        Ok(())
    }

    /// The table of the operator of this name.
    pub fn named(&self, operator: &str) -> Option<&dyn AnyTable> {
        self.tables().find(|table| table.operator() == operator)
    }

    /// All tables, in the order added.
    pub fn tables(&self) -> impl Iterator<Item = &dyn AnyTable> {
        self.order.iter().map(|id| &*self.tables[id])
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.tables().map(|t| (t.operator(), t.row_names().len()))).finish()
    }
}
