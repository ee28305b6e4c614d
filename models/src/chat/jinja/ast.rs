//! The syntax tree of a template. Chains such as `a + b + c` lie flat, so that long ones are not deep.

use std::rc::Rc;

use super::value::Value;

/// An expression and the line it begins on.
pub(super) struct Expr {
    pub line: u32,
    pub kind: ExprKind,
}

pub(super) enum ExprKind {
    Constant(Value),
    Name(Rc<str>),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    /// Operators of one precedence, applied from left to right.
    Arithmetic(Box<Expr>, Vec<(Operator, Expr)>),
    /// `a ~ b ~ c`.
    Concat(Vec<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// `a < b <= c`: each operand is compared with the next.
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// `then if test else otherwise`.
    If {
        test: Box<Expr>,
        then: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
    /// A value and what follows it: attributes, items, calls, filters and tests.
    Postfix(Box<Expr>, Vec<Postfix>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

pub(super) struct Postfix {
    pub line: u32,
    pub kind: PostfixKind,
}

pub(super) enum PostfixKind {
    Attribute(Rc<str>),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Arguments),
    Filter(Rc<str>, Arguments),
    Test { name: Rc<str>, arguments: Arguments, negated: bool },
}

/// Arguments as written: by position, by name, and spread out of a list or a dict.
#[derive(Default)]
pub(super) struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(Rc<str>, Expr)>,
    pub spread: Option<Box<Expr>>,
    pub spread_named: Option<Box<Expr>>,
}

/// The target of an assignment.
pub(super) enum Target {
    Name(Rc<str>),
    /// `namespace.attribute`.
    Attribute(Rc<str>, Rc<str>),
    Tuple(Vec<Target>),
}

pub(super) type Body = Vec<Statement>;

pub(super) struct Statement {
    pub line: u32,
    pub kind: StatementKind,
}

pub(super) enum StatementKind {
    Text(String),
    Output(Expr),
    If {
        branches: Vec<(Expr, Body)>,
        otherwise: Body,
    },
    For(Rc<ForLoop>),
    Set(Target, Expr),
    /// `{% set target | filters %}body{% endset %}`.
    SetBlock {
        target: Target,
        filters: Vec<Postfix>,
        body: Body,
    },
    Macro(Rc<str>, Rc<MacroDefinition>),
    /// `{% call(parameters) callee(arguments) %}body{% endcall %}`.
    CallBlock {
        callee: Expr,
        arguments: Arguments,
        caller: Rc<MacroDefinition>,
    },
    FilterBlock {
        filters: Vec<Postfix>,
        body: Body,
    },
    /// A scope of its own; `{% generation %}` is one, too.
    With {
        bindings: Vec<(Target, Expr)>,
        body: Body,
    },
    Block(Rc<Block>),
    Autoescape(Expr, Body),
    Break,
    Continue,
    /// A statement that needs other templates, of which there are none.
    NeedsLoader(&'static str),
}

pub(super) struct ForLoop {
    pub target: Target,
    pub items: Expr,
    pub test: Option<Expr>,
    pub recursive: bool,
    pub body: Body,
    pub otherwise: Body,
}

/// A macro, or the body of a call block, which the called macro knows as `caller`.
pub(super) struct MacroDefinition {
    /// The bodies of call blocks have no name.
    pub name: Option<Rc<str>>,
    pub parameters: Vec<(Rc<str>, Option<Expr>)>,
    pub body: Body,
    pub uses: SpecialNames,
}

impl MacroDefinition {
    /// The macro as messages and `repr` name it.
    pub fn label(&self) -> String {
        self.name.as_ref().map_or_else(|| "anonymous".to_owned(), |name| format!("'{name}'"))
    }
}

/// The names that a macro gets beside its parameters where its body reads them.
#[derive(Default, Clone, Copy)]
pub(super) struct SpecialNames {
    pub caller: bool,
    pub varargs: bool,
    pub kwargs: bool,
}

pub(super) struct Block {
    pub name: Rc<str>,
    pub scoped: bool,
    pub required: bool,
    pub body: Body,
}

/// A whole template.
pub(super) struct Template {
    pub body: Body,
    pub blocks: Vec<Rc<Block>>,
}
