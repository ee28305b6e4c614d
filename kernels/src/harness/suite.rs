//! Rows and cases of an operator without its types, so that all else of the harness is compiled once and not for each
//! operator.

use sinew_memory::Hardware;

use crate::harness::case::{Case, Expected, HostOperands, Reference, Values};
use crate::operator::{Arithmetic, Launch, Operands, Refusal, Row, Work};
use crate::{Operator, Result};

/// Rows of an operator, and cases to run with them.
pub(crate) struct Suite<O: Operator> {
    pub rows: Vec<Row<O>>,
    pub cases: Vec<Case<O>>,
}

/// A [`Suite`] of any operator: rows and cases are named by their numbers.
pub(crate) trait AnySuite: Send + Sync {
    /// The operator's name.
    fn operator(&self) -> &'static str;
    /// How many rows there are.
    fn rows(&self) -> usize;
    /// Name and arithmetic of a row.
    fn row(&self, row: usize) -> (&'static str, Arithmetic);
    /// How many cases there are.
    fn cases(&self) -> usize;
    /// A case in words.
    fn text(&self, case: usize) -> String;
    /// A case's problem in words.
    fn problem(&self, case: usize) -> String;
    /// [`Operator::check`] of a case.
    fn check(&self, case: usize, operands: Operands<'_>) -> Result<()>;
    /// What a case's inputs hold, and the seed of the values.
    fn values(&self, case: usize) -> (Values, u64);
    /// [`Operator::work`] of a case.
    fn work(&self, case: usize) -> Work;
    /// [`Reference::operands`] of a case.
    fn operands(&self, case: usize) -> Result<HostOperands>;
    /// [`Row::admits`] for a case.
    fn admits(&self, row: usize, case: usize, hardware: &Hardware) -> Result<(), Refusal>;
    /// [`Row::workspace`] of a case.
    fn workspace(&self, row: usize, case: usize, hardware: &Hardware) -> usize;
    /// [`Row::launch`] on a case.
    fn launch(&self, row: usize, case: usize, launch: &Launch<'_>, operands: Operands<'_>) -> Result<()>;
    /// [`Reference::expect`] of a case.
    fn expect(
        &self,
        case: usize,
        host: &HostOperands,
        arithmetic: Arithmetic,
        output: usize,
        index: &[usize],
    ) -> Expected;
    /// [`Reference::logical`] of a case.
    fn logical(&self, case: usize, output: usize, elements: &[f64]) -> Option<Vec<f64>>;
}

impl<O: Reference> AnySuite for Suite<O> {
    fn operator(&self) -> &'static str {
        O::NAME
    }
    fn rows(&self) -> usize {
        self.rows.len()
    }
    fn row(&self, row: usize) -> (&'static str, Arithmetic) {
        (self.rows[row].name, self.rows[row].arithmetic)
    }
    fn cases(&self) -> usize {
        self.cases.len()
    }
    fn text(&self, case: usize) -> String {
        self.cases[case].to_string()
    }
    fn problem(&self, case: usize) -> String {
        let Case { fixed, call, .. } = &self.cases[case];
        format!("{fixed}; {call}")
    }
    fn check(&self, case: usize, operands: Operands<'_>) -> Result<()> {
        O::check(&self.cases[case].fixed, &self.cases[case].call, operands)
    }
    fn values(&self, case: usize) -> (Values, u64) {
        (self.cases[case].values, self.cases[case].seed)
    }
    fn work(&self, case: usize) -> Work {
        O::work(&self.cases[case].fixed, &self.cases[case].call)
    }
    fn operands(&self, case: usize) -> Result<HostOperands> {
        O::operands(&self.cases[case])
    }
    fn admits(&self, row: usize, case: usize, hardware: &Hardware) -> Result<(), Refusal> {
        (self.rows[row].admits)(&self.cases[case].fixed, hardware)
    }
    fn workspace(&self, row: usize, case: usize, hardware: &Hardware) -> usize {
        (self.rows[row].workspace)(&self.cases[case].fixed, &self.cases[case].call, hardware)
    }
    fn launch(&self, row: usize, case: usize, launch: &Launch<'_>, operands: Operands<'_>) -> Result<()> {
        self.rows[row].launch(launch, &self.cases[case].fixed, &self.cases[case].call, operands)
    }
    fn expect(
        &self,
        case: usize,
        host: &HostOperands,
        arithmetic: Arithmetic,
        output: usize,
        index: &[usize],
    ) -> Expected {
        O::expect(&self.cases[case], host, arithmetic, output, index)
    }
    fn logical(&self, case: usize, output: usize, elements: &[f64]) -> Option<Vec<f64>> {
        O::logical(&self.cases[case], output, elements)
    }
}
