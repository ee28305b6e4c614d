//! What a template may use up.
//!
//! Fuel counts steps, but one step can double a text, repeat a list, or put a list into itself twice: forty steps of
//! that, and the memory of no machine would do. So the syntax tree is rebuilt with a filter around everything that
//! makes a value, and that filter weighs what was made.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, CallArg, Expr, Spanned, Stmt};
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value, context};

/// No names that a template could write.
const MADE: &str = "made!";
const SLICED: &str = "sliced!";
const KEPT: &str = "kept!";
const TIMES: &str = "times!";

/// Bytes of one text. A context of a million tokens has about as many.
pub(super) const MAX_TEXT: usize = 4 << 20;
/// Bytes of all values that are made in one rendering.
const MAX_MADE: usize = 64 << 20;
/// Bytes of all text that is written in one rendering, to the result or to a block that captures it.
const MAX_WRITTEN: usize = 16 << 20;
/// What a value takes beside its text.
const VALUE_BYTES: usize = 32;
/// Lists in lists: as deep as values may lie, far below where printing one would leave the stack.
const MAX_DEPTH: usize = 64;
/// Fuel and sizes bound the time, but not below minutes for the worst of templates.
const MAX_TIME: Duration = Duration::from_secs(1);

/// The account of one rendering.
#[derive(Debug)]
pub(super) struct Meter {
    made: AtomicUsize,
    written: AtomicUsize,
    end: Instant,
}

pub(super) fn refused(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.into())
}

/// Refuses a text of more bytes than one may have, before it is made.
pub(super) fn check_text(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_TEXT {
        return Err(refused(format!("a text of {bytes} bytes is more than the {MAX_TEXT} that a template may make")));
    }
    Ok(())
}

impl Meter {
    pub(super) fn new() -> Self {
        Self { made: AtomicUsize::new(0), written: AtomicUsize::new(0), end: Instant::now() + MAX_TIME }
    }

    /// Counts a value that was made, with all that is in it.
    pub(super) fn made(&self, value: &Value) -> Result<(), Error> {
        if Instant::now() > self.end {
            return Err(refused(format!("the template takes longer than {} s", MAX_TIME.as_secs())));
        }
        self.weigh(value, 0)
    }

    fn weigh(&self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refused(format!("values lie deeper than {MAX_DEPTH} in each other")));
        }
        let text = value.as_str().map_or(0, str::len);
        check_text(text)?;
        let bytes = VALUE_BYTES + text;
        // A list that is a repetition or a sum of others takes long to walk, and knows its length.
        let items = if text > 0 { 0 } else { value.len().unwrap_or(0) };
        if self.made.fetch_add(bytes, Ordering::Relaxed).saturating_add(items.saturating_mul(VALUE_BYTES)) > MAX_MADE {
            return Err(refused(format!("the values that the template makes are more than {} MiB", MAX_MADE >> 20)));
        }
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
            return Ok(());
        }
        for key in value.try_iter()? {
            if value.kind() == ValueKind::Map {
                self.weigh(&value.get_item(&key)?, depth + 1)?;
            }
            self.weigh(&key, depth + 1)?;
        }
        Ok(())
    }

    /// Counts text that is written.
    pub(super) fn written(&self, bytes: usize) -> Result<(), Error> {
        if self.written.fetch_add(bytes, Ordering::Relaxed) > MAX_WRITTEN {
            return Err(refused(format!("the template writes more than {} MiB", MAX_WRITTEN >> 20)));
        }
        Ok(())
    }
}

/// The filters that [`metered`] puts into a tree.
pub(super) fn add_filters(env: &mut Environment<'_>, meter: &std::sync::Arc<Meter>) {
    let account = meter.clone();
    env.add_filter(MADE, move |value: Value| account.made(&value).map(|()| value));
    let account = meter.clone();
    // The items of a part of a list are the list's.
    env.add_filter(SLICED, move |value: Value| match value.as_str() {
        Some(_) => account.made(&value).map(|()| value),
        None => Ok(value),
    });
    env.add_filter(TIMES, times);
    env.add_filter(KEPT, |value: Value| match holds_namespace(&value, 0) {
        true => Err(refused("a namespace cannot be kept in a namespace")),
        false => Ok(value),
    });
}

/// A product, which of a text is its repetition, and then refused before it is made.
fn times(left: Value, right: Value) -> Result<Value, Error> {
    for (text, count) in [(&left, &right), (&right, &left)] {
        if let (Some(text), Some(count)) = (text.as_str(), count.as_usize()) {
            check_text(text.len().saturating_mul(count))?;
        }
    }
    Environment::empty().compile_expression("left * right")?.eval(context! { left, right })
}

/// A namespace in a namespace could hold itself, and to print it would not end.
fn holds_namespace(value: &Value, depth: usize) -> bool {
    let Some(object) = value.as_object() else { return false };
    if depth > MAX_DEPTH || object.type_name().ends_with("::Namespace") {
        return true;
    }
    let Ok(mut keys) = value.try_iter() else { return false };
    keys.any(|key| {
        let item =
            if value.kind() == ValueKind::Map { value.get_item(&key).unwrap_or_default() } else { Value::UNDEFINED };
        holds_namespace(&item, depth + 1) || holds_namespace(&key, depth + 1)
    })
}

/// The tree with everything weighed that it makes. Nothing is computed before it runs: between constants stand filters.
pub(super) fn metered<'a>(statement: &Stmt<'a>) -> Result<Stmt<'a>, Error> {
    Ok(match statement {
        Stmt::Template(node) => Stmt::Template(respan(node, ast::Template { children: body(&node.children)? })),
        Stmt::EmitExpr(node) => Stmt::EmitExpr(respan(node, ast::EmitExpr { expr: expr(&node.expr)? })),
        // As an expression: the formatter counts what expressions write.
        Stmt::EmitRaw(node) => {
            let raw = Expr::Const(respan(node, ast::Const { value: Value::from(node.raw) }));
            Stmt::EmitExpr(respan(node, ast::EmitExpr { expr: raw }))
        }
        Stmt::ForLoop(node) => Stmt::ForLoop(respan(
            node,
            ast::ForLoop {
                target: target(&node.target)?,
                iter: expr(&node.iter)?,
                filter_expr: node.filter_expr.as_ref().map(expr).transpose()?,
                recursive: node.recursive,
                body: body(&node.body)?,
                else_body: body(&node.else_body)?,
            },
        )),
        Stmt::IfCond(node) => Stmt::IfCond(respan(
            node,
            ast::IfCond {
                expr: expr(&node.expr)?,
                true_body: body(&node.true_body)?,
                false_body: body(&node.false_body)?,
            },
        )),
        Stmt::WithBlock(node) => {
            let assignments = node.assignments.iter().map(|(to, from)| Ok((target(to)?, expr(from)?)));
            let assignments = assignments.collect::<Result<_, Error>>()?;
            Stmt::WithBlock(respan(node, ast::WithBlock { assignments, body: body(&node.body)? }))
        }
        Stmt::Set(node) => {
            let mut value = expr(&node.expr)?;
            if matches!(node.target, Expr::GetAttr(_)) {
                value = filtered(KEPT, Some(value), node.span());
            }
            Stmt::Set(respan(node, ast::Set { target: target(&node.target)?, expr: value }))
        }
        Stmt::SetBlock(node) => {
            let inner = node.filter.as_ref().map(expr).transpose()?;
            let filter = Some(filtered(MADE, inner, node.span()));
            Stmt::SetBlock(respan(
                node,
                ast::SetBlock { target: target(&node.target)?, filter, body: body(&node.body)? },
            ))
        }
        Stmt::FilterBlock(node) => {
            Stmt::FilterBlock(respan(node, ast::FilterBlock { filter: expr(&node.filter)?, body: body(&node.body)? }))
        }
        Stmt::Macro(node) => Stmt::Macro(macro_of(node)?),
        Stmt::CallBlock(node) => Stmt::CallBlock(respan(
            node,
            ast::CallBlock { call: call(&node.call)?, macro_decl: macro_of(&node.macro_decl)? },
        )),
        Stmt::Continue(node) => Stmt::Continue(respan(node, ast::Continue)),
        Stmt::Break(node) => Stmt::Break(respan(node, ast::Break)),
        // Auto-escaping, `do`, and what only sets of templates have.
        _ => return Err(Error::new(ErrorKind::SyntaxError, "a statement that chat templates do not have")),
    })
}

fn respan<T, U>(node: &Spanned<T>, new: U) -> Spanned<U> {
    Spanned::new(new, node.span())
}

fn body<'a>(statements: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>, Error> {
    statements.iter().map(metered).collect()
}

fn macro_of<'a>(node: &Spanned<ast::Macro<'a>>) -> Result<Spanned<ast::Macro<'a>>, Error> {
    let args = node.args.iter().map(target).collect::<Result<_, Error>>()?;
    let macro_of = ast::Macro { name: node.name, args, defaults: exprs(&node.defaults)?, body: body(&node.body)? };
    Ok(respan(node, macro_of))
}

fn call<'a>(node: &Spanned<ast::Call<'a>>) -> Result<Spanned<ast::Call<'a>>, Error> {
    // What is called keeps its form, by which methods and functions are told apart; only what it is a method of
    // changes.
    Ok(respan(node, ast::Call { expr: target(&node.expr)?, args: arguments(&node.args)? }))
}

fn arguments<'a>(args: &[CallArg<'a>]) -> Result<Vec<CallArg<'a>>, Error> {
    args.iter()
        .map(|arg| {
            Ok(match arg {
                CallArg::Pos(value) => CallArg::Pos(expr(value)?),
                CallArg::Kwarg(name, value) => CallArg::Kwarg(name, expr(value)?),
                CallArg::PosSplat(value) => CallArg::PosSplat(expr(value)?),
                CallArg::KwargSplat(value) => CallArg::KwargSplat(expr(value)?),
            })
        })
        .collect()
}

fn exprs<'a>(list: &[Expr<'a>]) -> Result<Vec<Expr<'a>>, Error> {
    list.iter().map(expr).collect()
}

fn optional<'a>(value: &Option<Expr<'a>>) -> Result<Option<Expr<'a>>, Error> {
    value.as_ref().map(expr).transpose()
}

fn filtered<'a>(name: &'static str, value: Option<Expr<'a>>, span: Span) -> Expr<'a> {
    Expr::Filter(Spanned::new(ast::Filter { name, expr: value, args: Vec::new() }, span))
}

/// An expression that is assigned to or called: its outermost node stays what it is.
fn target<'a>(value: &Expr<'a>) -> Result<Expr<'a>, Error> {
    Ok(match value {
        Expr::List(node) => {
            let items = node.items.iter().map(target).collect::<Result<_, _>>()?;
            Expr::List(respan(node, ast::List { items }))
        }
        Expr::Tuple(node) => {
            let items = node.items.iter().map(target).collect::<Result<_, _>>()?;
            Expr::Tuple(respan(node, ast::Tuple { items }))
        }
        other => expr(other)?,
    })
}

fn expr<'a>(value: &Expr<'a>) -> Result<Expr<'a>, Error> {
    let made = match value {
        Expr::Var(node) => return Ok(Expr::Var(respan(node, ast::Var { id: node.id }))),
        Expr::Const(node) => return Ok(Expr::Const(respan(node, ast::Const { value: node.value.clone() }))),
        Expr::GetAttr(node) => {
            return Ok(Expr::GetAttr(respan(node, ast::GetAttr { expr: expr(&node.expr)?, name: node.name })));
        }
        Expr::GetItem(node) => {
            let item = ast::GetItem { expr: expr(&node.expr)?, subscript_expr: expr(&node.subscript_expr)? };
            return Ok(Expr::GetItem(respan(node, item)));
        }
        Expr::IfExpr(node) => {
            let [test_expr, true_expr] = [expr(&node.test_expr)?, expr(&node.true_expr)?];
            let false_expr = optional(&node.false_expr)?;
            return Ok(Expr::IfExpr(respan(node, ast::IfExpr { test_expr, true_expr, false_expr })));
        }
        Expr::Slice(node) => {
            let (start, stop, step) = (optional(&node.start)?, optional(&node.stop)?, optional(&node.step)?);
            let slice = Expr::Slice(respan(node, ast::Slice { expr: expr(&node.expr)?, start, stop, step }));
            return Ok(filtered(SLICED, Some(slice), node.span()));
        }
        Expr::UnaryOp(node) => {
            let is_not = matches!(node.op, ast::UnaryOpKind::Not);
            let op = if is_not { ast::UnaryOpKind::Not } else { ast::UnaryOpKind::Neg };
            Expr::UnaryOp(respan(node, ast::UnaryOp { op, expr: expr(&node.expr)? }))
        }
        // No operator, which the code generator would compute ahead of all meters where both sides are constants.
        Expr::BinOp(node) if matches!(node.op, ast::BinOpKind::Mul) => {
            let (left, right) = (expr(&node.left)?, expr(&node.right)?);
            let args = vec![CallArg::Pos(right)];
            Expr::Filter(respan(node, ast::Filter { name: TIMES, expr: Some(left), args }))
        }
        Expr::BinOp(node) => {
            let (left, right) = (expr(&node.left)?, expr(&node.right)?);
            Expr::BinOp(respan(node, ast::BinOp { op: node.op, left, right }))
        }
        Expr::Compare(node) => {
            let ops = node.ops.iter().map(|op| Ok(ast::CompareOp { op: op.op, expr: expr(&op.expr)? }));
            let ops = ops.collect::<Result<_, Error>>()?;
            Expr::Compare(respan(node, ast::Compare { expr: expr(&node.expr)?, ops }))
        }
        Expr::Filter(node) => {
            let (input, args) = (optional(&node.expr)?, arguments(&node.args)?);
            Expr::Filter(respan(node, ast::Filter { name: node.name, expr: input, args }))
        }
        Expr::Test(node) => {
            let (value, args) = (expr(&node.expr)?, arguments(&node.args)?);
            Expr::Test(respan(node, ast::Test { name: node.name, expr: value, args }))
        }
        Expr::Call(node) => Expr::Call(call(node)?),
        Expr::List(node) => Expr::List(respan(node, ast::List { items: exprs(&node.items)? })),
        Expr::Tuple(node) => Expr::Tuple(respan(node, ast::Tuple { items: exprs(&node.items)? })),
        Expr::Map(node) => Expr::Map(respan(node, ast::Map { keys: exprs(&node.keys)?, values: exprs(&node.values)? })),
    };
    let span = made.span();
    Ok(filtered(MADE, Some(made), span))
}
