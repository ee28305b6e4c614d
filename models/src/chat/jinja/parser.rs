//! Tokens as a syntax tree, by Jinja's grammar with its extensions `loopcontrols` and transformers' `generation`.

use std::rc::Rc;

use super::arguments::Native;
use super::ast::{
    Arguments, Block, Body, Comparison, Expr, ExprKind, ForLoop, MacroDefinition, Operator, Postfix, PostfixKind,
    SpecialNames, Statement, StatementKind, Target, Template,
};
use super::error::{Error, Result, fail};
use super::filters::FILTERS;
use super::lexer::{Lexed, Token, tokens};
use super::predicates::TESTS;
use super::value::Value;

/// Maximum nesting of statements and expressions. Python's compiler, which runs Jinja's templates, has about as much.
const MAX_DEPTH: usize = 100;

/// Maximum number of operands, filters or branches in a row. Jinja fails at fewer, as Python's recursion limit ends it.
const MAX_CHAIN: usize = 4096;

/// Parses a template.
pub(super) fn parse(source: &str) -> Result<Template> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        depth: 0,
        unknown: Vec::new(),
        for_loops: 0,
        may_break: false,
        macros: Vec::new(),
        blocks: Vec::new(),
    };
    let result = parser.template();
    let line = parser.line();
    result.map_err(|error| error.at(line))
}

struct Parser {
    tokens: Vec<Lexed>,
    at: usize,
    depth: usize,
    /// Filters and tests that do not exist. They fail when the template is parsed, except in conditional code, where they
    /// fail when they run.
    unknown: Vec<Error>,
    /// Number of loops around the current place.
    for_loops: usize,
    /// The current place is in a loop, in the same function of Jinja's generated code.
    may_break: bool,
    /// Special names that the macros around the current place read, from the outermost to the innermost.
    macros: Vec<MacroNames>,
    blocks: Vec<Rc<Block>>,
}

/// The special names in the body of a macro: those that it reads, and those that it has assigned before.
#[derive(Default)]
struct MacroNames {
    read: SpecialNames,
    assigned: SpecialNames,
}

impl SpecialNames {
    fn of(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "caller" => Some(&mut self.caller),
            "varargs" => Some(&mut self.varargs),
            "kwargs" => Some(&mut self.kwargs),
            _ => None,
        }
    }
}

/// Which expressions a list of expressions without parentheses may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Items {
    Any,
    /// Without `a if b`, as in the head of a loop, where `if` begins its filter.
    NoConditional,
}

impl Parser {
    // Tokens.

    fn token(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |lexed| &lexed.token)
    }

    fn next_token(&self) -> &Token {
        self.tokens.get(self.at + 1).map_or(&Token::End, |lexed| &lexed.token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |lexed| lexed.line)
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(self.token(), Token::Operator(found) if *found == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(found) if found.as_ref() == name)
    }

    fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        self.at += usize::from(found);
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn expect_operator(&mut self, operator: &str) -> Result<()> {
        match self.skip_operator(operator) {
            true => Ok(()),
            false => fail!("expected '{operator}', found '{}'", self.token().describe()),
        }
    }

    fn expect_keyword(&mut self, name: &str) -> Result<()> {
        match self.skip_name(name) {
            true => Ok(()),
            false => fail!("expected '{name}', found '{}'", self.token().describe()),
        }
    }

    fn expect_name(&mut self) -> Result<Rc<str>> {
        match self.token() {
            Token::Name(name) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            other => fail!("expected a name, found '{}'", other.describe()),
        }
    }

    fn expect_end_of(&mut self, end: &Token) -> Result<()> {
        if self.token() != end {
            fail!("expected the {}, found '{}'", end.describe(), self.token().describe());
        }
        self.at += 1;
        Ok(())
    }

    fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            fail!("the template's syntax has a deeper recursion than {MAX_DEPTH} levels");
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    // Statements.

    fn template(&mut self) -> Result<Template> {
        let body = self.body(&[])?;
        if let Some(error) = self.unknown.pop() {
            return Err(error);
        }
        Ok(Template { body, blocks: std::mem::take(&mut self.blocks) })
    }

    /// Statements and text up to a tag in `ends`, whose name is the next token then.
    fn body(&mut self, ends: &[&str]) -> Result<Body> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.token() {
                Token::Data(text) => {
                    let kind = StatementKind::Text(text.clone());
                    self.at += 1;
                    body.push(Statement { line, kind });
                }
                Token::VariableBegin => {
                    self.at += 1;
                    let kind = StatementKind::Output(self.tuple(Items::Any, &[])?);
                    self.expect_end_of(&Token::VariableEnd)?;
                    body.push(Statement { line, kind });
                }
                Token::BlockBegin => {
                    self.at += 1;
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    let kind = self.deeper(Self::statement)?;
                    self.expect_end_of(&Token::BlockEnd)?;
                    body.push(Statement { line, kind });
                }
                Token::End if ends.is_empty() => return Ok(body),
                Token::End => fail!("unexpected end of template: it misses the tag {}", ends.join(" or ")),
                other => fail!("unexpected '{}'", other.describe()),
            }
        }
    }

    /// The body of a statement: the end of its tag, and all up to a tag in `ends`.
    fn block_body(&mut self, ends: &[&str]) -> Result<Body> {
        self.skip_operator(":");
        self.expect_end_of(&Token::BlockEnd)?;
        self.body(ends)
    }

    /// A body that ends with the tag `end`.
    fn body_to(&mut self, end: &str) -> Result<Body> {
        let body = self.block_body(&[end])?;
        self.at += 1;
        Ok(body)
    }

    /// Parses code that is a function of its own in Jinja's generated code, which no loop around it can be left from.
    fn function<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = std::mem::replace(&mut self.may_break, false);
        let result = inner(self);
        self.may_break = outer;
        result
    }

    /// Parses code in a scope of its own, in which unknown filters fail at once again.
    fn scope<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = self.unknown.len();
        let result = inner(self)?;
        match self.unknown.len() > outer {
            true => Err(self.unknown.remove(outer)),
            false => Ok(result),
        }
    }

    fn statement(&mut self) -> Result<StatementKind> {
        let line = self.line();
        let Token::Name(name) = self.token().clone() else { fail!("a tag's name is missing") };
        self.at += 1;
        match name.as_ref() {
            "if" => self.if_statement(),
            "for" => self.for_loop(),
            "set" => self.set(),
            "macro" => self.macro_definition(),
            "call" => self.call_block(line),
            "filter" => self.filter_block(),
            "with" => self.with(),
            "block" => self.block(),
            "print" => self.print(line),
            "generation" => {
                let body = self.function(|parser| parser.scope(|parser| parser.body_to("endgeneration")))?;
                // transformers makes the body a macro without arguments.
                let line = self.line();
                let binding = |name: &str, kind| (Target::Name(name.into()), Expr { line, kind });
                let none =
                    [binding("kwargs", ExprKind::Dict(Vec::new())), binding("varargs", ExprKind::Tuple(Vec::new()))];
                Ok(StatementKind::With { bindings: none.into(), body })
            }
            "autoescape" => {
                let flag = self.expression()?;
                let body = self.scope(|parser| parser.body_to("endautoescape"))?;
                Ok(StatementKind::Autoescape(flag, body))
            }
            "break" | "continue" if !self.may_break => fail!("'{name}' outside of a loop"),
            "break" => Ok(StatementKind::Break),
            "continue" => Ok(StatementKind::Continue),
            "include" | "extends" | "import" | "from" => self.needs_loader(&name),
            _ => fail!("encountered unknown tag '{name}'"),
        }
    }

    /// Code of which only some runs: unknown filters and tests in it fail when they are used.
    fn if_statement(&mut self) -> Result<StatementKind> {
        let unknown = self.unknown.len();
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.tuple(Items::NoConditional, &[])?;
            branches.push((test, self.block_body(&["elif", "else", "endif"])?));
            check_chain(branches.len())?;
            if self.skip_name("elif") {
                continue;
            }
            if self.skip_name("else") {
                otherwise = self.block_body(&["endif"])?;
            }
            break;
        }
        self.at += 1;
        self.unknown.truncate(unknown);
        Ok(StatementKind::If { branches, otherwise })
    }

    fn for_loop(&mut self) -> Result<StatementKind> {
        self.for_loops += 1;
        let target = self.target(&["in"], false)?;
        self.expect_keyword("in")?;
        let items = self.tuple(Items::NoConditional, &["recursive"])?;
        let test = match self.skip_name("if") {
            true => Some(self.scope(Self::expression)?),
            false => None,
        };
        let recursive = self.skip_name("recursive");
        let outer = std::mem::replace(&mut self.may_break, true);
        let body = self.scope(|parser| parser.block_body(&["endfor", "else"]))?;
        self.may_break = outer && !recursive;
        let otherwise = match self.skip_name("else") {
            true => self.scope(|parser| parser.block_body(&["endfor"]))?,
            false => Vec::new(),
        };
        self.at += 1;
        self.may_break = outer;
        self.for_loops -= 1;
        Ok(StatementKind::For(Rc::new(ForLoop { target, items, test, recursive, body, otherwise })))
    }

    fn set(&mut self) -> Result<StatementKind> {
        let target = self.target(&[], true)?;
        if self.skip_operator("=") {
            return Ok(StatementKind::Set(target, self.tuple(Items::Any, &[])?));
        }
        let filters = self.scope(Self::filters)?;
        let body = self.scope(|parser| parser.body_to("endset"))?;
        Ok(StatementKind::SetBlock { target, filters, body })
    }

    fn macro_definition(&mut self) -> Result<StatementKind> {
        let name = self.expect_name()?;
        let parameters = self.parameters()?;
        Ok(StatementKind::Macro(name.clone(), self.macro_body(Some(name), parameters, "endmacro")?))
    }

    fn macro_body(
        &mut self,
        name: Option<Rc<str>>,
        parameters: Vec<(Rc<str>, Option<Expr>)>,
        end: &str,
    ) -> Result<Rc<MacroDefinition>> {
        self.macros.push(MacroNames::default());
        let body = self.function(|parser| parser.scope(|parser| parser.body_to(end)))?;
        let mut uses = self.macros.pop().unwrap_or_default().read;
        for (parameter, default) in &parameters {
            match parameter.as_ref() {
                "caller" if uses.caller && default.is_none() => {
                    fail!("the special parameter 'caller' must be left out or have a default")
                }
                "varargs" => uses.varargs = false,
                "kwargs" => uses.kwargs = false,
                _ => {}
            }
        }
        Ok(Rc::new(MacroDefinition { name, parameters, body, uses }))
    }

    fn parameters(&mut self) -> Result<Vec<(Rc<str>, Option<Expr>)>> {
        self.expect_operator("(")?;
        let mut parameters: Vec<(Rc<str>, Option<Expr>)> = Vec::new();
        while !self.is_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.expect_name()?;
            let default = match self.skip_operator("=") {
                true => Some(self.scope(Self::expression)?),
                false => None,
            };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                fail!("parameter '{name}' without a default follows one with a default");
            }
            if parameters.iter().any(|(other, _)| *other == name) {
                fail!("two parameters are called '{name}'");
            }
            parameters.push((name, default));
        }
        self.expect_operator(")")?;
        Ok(parameters)
    }

    fn call_block(&mut self, line: u32) -> Result<StatementKind> {
        let parameters = if self.is_operator("(") { self.parameters()? } else { Vec::new() };
        let mut callee = self.expression()?;
        let ExprKind::Postfix(_, postfixes) = &mut callee.kind else {
            return Err(Error::new("expected a call").at(line));
        };
        match postfixes.pop().map(|postfix| postfix.kind) {
            Some(PostfixKind::Call(arguments)) => {
                let caller = self.macro_body(None, parameters, "endcall")?;
                Ok(StatementKind::CallBlock { callee, arguments, caller })
            }
            _ => Err(Error::new("expected a call").at(line)),
        }
    }

    fn filter_block(&mut self) -> Result<StatementKind> {
        let mut filters = vec![self.scope(Self::filter)?];
        filters.extend(self.scope(Self::filters)?);
        let body = self.scope(|parser| parser.body_to("endfilter"))?;
        Ok(StatementKind::FilterBlock { filters, body })
    }

    fn with(&mut self) -> Result<StatementKind> {
        let mut bindings = Vec::new();
        while *self.token() != Token::BlockEnd {
            if !bindings.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect_operator("=")?;
            bindings.push((target, self.expression()?));
        }
        let body = self.scope(|parser| parser.body_to("endwith"))?;
        Ok(StatementKind::With { bindings, body })
    }

    fn block(&mut self) -> Result<StatementKind> {
        let name = self.expect_name()?;
        let scoped = self.skip_name("scoped");
        let required = self.skip_name("required");
        let body = self.function(|parser| parser.scope(|parser| parser.body_to("endblock")))?;
        let is_blank = |statement: &Statement| matches!(&statement.kind, StatementKind::Text(text) if text.chars().all(super::text::is_space));
        if required && !body.iter().all(is_blank) {
            fail!("required blocks can only contain comments or white space");
        }
        self.skip_name(&name);
        if self.blocks.iter().any(|block| block.name == name) {
            fail!("block '{name}' is defined twice");
        }
        let block = Rc::new(Block { name, scoped, required, body });
        self.blocks.push(block.clone());
        Ok(StatementKind::Block(block))
    }

    fn print(&mut self, line: u32) -> Result<StatementKind> {
        let mut body = Vec::new();
        while *self.token() != Token::BlockEnd {
            if !body.is_empty() {
                self.expect_operator(",")?;
            }
            body.push(Statement { line, kind: StatementKind::Output(self.expression()?) });
        }
        // All of it is one branch without a condition.
        Ok(StatementKind::If { branches: Vec::new(), otherwise: body })
    }

    /// Tags that name other templates parse, and fail when they run.
    fn needs_loader(&mut self, name: &str) -> Result<StatementKind> {
        self.expression()?;
        while !matches!(self.token(), Token::BlockEnd | Token::End) {
            self.at += 1;
        }
        Ok(StatementKind::NeedsLoader(match name {
            "include" => "include",
            "extends" => "extends",
            "import" => "import",
            _ => "from",
        }))
    }

    // Targets of assignments.

    /// One target or several, up to a name in `ends` or the end of the tag.
    fn target(&mut self, ends: &[&str], with_namespace: bool) -> Result<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        while !self.is_end_of_tuple(ends) {
            targets.push(self.one_target(with_namespace)?);
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match targets.pop() {
            Some(target) if !is_tuple => Ok(target),
            None => fail!("expected a name to assign to, found '{}'", self.token().describe()),
            Some(target) => {
                targets.push(target);
                Ok(Target::Tuple(targets))
            }
        }
    }

    fn one_target(&mut self, with_namespace: bool) -> Result<Target> {
        if self.skip_operator("(") {
            let target = self.deeper(|parser| parser.target(&[], false))?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if matches!(name.as_ref(), "true" | "false" | "none" | "True" | "False" | "None") {
            fail!("can't assign to '{name}'");
        }
        if with_namespace && self.skip_operator(".") {
            return Ok(Target::Attribute(name, self.expect_name()?));
        }
        if name.as_ref() == "loop" && self.for_loops > 0 {
            fail!("can't assign to the special variable 'loop' in a for-loop");
        }
        for names in &mut self.macros {
            if let Some(assigned) = names.assigned.of(&name) {
                *assigned = true;
            }
        }
        Ok(Target::Name(name))
    }

    // Expressions.

    fn is_end_of_tuple(&self, ends: &[&str]) -> bool {
        matches!(self.token(), Token::VariableEnd | Token::BlockEnd)
            || self.is_operator(")")
            || ends.iter().any(|end| self.is_name(end))
    }

    /// One expression, or several with commas between them, which make a tuple.
    fn tuple(&mut self, items: Items, ends: &[&str]) -> Result<Expr> {
        let line = self.line();
        let mut exprs = Vec::new();
        let mut is_tuple = false;
        while !self.is_end_of_tuple(ends) {
            exprs.push(match items {
                Items::Any => self.expression()?,
                Items::NoConditional => self.deeper(Self::or)?,
            });
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match exprs.pop() {
            Some(expr) if !is_tuple => Ok(expr),
            None => fail!("expected an expression, found '{}'", self.token().describe()),
            Some(expr) => {
                exprs.push(expr);
                Ok(Expr { line, kind: ExprKind::Tuple(exprs) })
            }
        }
    }

    fn expression(&mut self) -> Result<Expr> {
        self.deeper(Self::conditional)
    }

    fn conditional(&mut self) -> Result<Expr> {
        let line = self.line();
        let unknown = self.unknown.len();
        let mut expr = self.or()?;
        let mut conditions = 0;
        while self.skip_name("if") {
            conditions += 1;
            if conditions > MAX_DEPTH {
                fail!("an expression has more than {MAX_DEPTH} conditions");
            }
            let test = Box::new(self.or()?);
            let otherwise = match self.skip_name("else") {
                true => Some(Box::new(self.expression()?)),
                false => None,
            };
            expr = Expr { line, kind: ExprKind::If { test, then: Box::new(expr), otherwise } };
            self.unknown.truncate(unknown);
        }
        Ok(expr)
    }

    fn or(&mut self) -> Result<Expr> {
        self.flat_list(Self::and, |parser| parser.skip_name("or"), ExprKind::Or)
    }

    fn and(&mut self) -> Result<Expr> {
        self.flat_list(Self::not, |parser| parser.skip_name("and"), ExprKind::And)
    }

    fn concat(&mut self) -> Result<Expr> {
        self.flat_list(Self::product, |parser| parser.skip_operator("~"), ExprKind::Concat)
    }

    /// Expressions with one separator between them, or one expression alone.
    fn flat_list(
        &mut self,
        item: fn(&mut Self) -> Result<Expr>,
        skip_separator: fn(&mut Self) -> bool,
        kind: fn(Vec<Expr>) -> ExprKind,
    ) -> Result<Expr> {
        let line = self.line();
        let first = item(self)?;
        if !skip_separator(self) {
            return Ok(first);
        }
        let mut items = vec![first];
        loop {
            items.push(item(self)?);
            check_chain(items.len())?;
            if !skip_separator(self) {
                return Ok(Expr { line, kind: kind(items) });
            }
        }
    }

    fn not(&mut self) -> Result<Expr> {
        let line = self.line();
        if self.skip_name("not") {
            let inner = self.deeper(Self::not)?;
            return Ok(Expr { line, kind: ExprKind::Not(Box::new(inner)) });
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison() {
            rest.push((comparison, self.sum()?));
            check_chain(rest.len())?;
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr { line, kind: ExprKind::Compare(Box::new(first), rest) },
        })
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let comparison = match self.token() {
            Token::Operator("==") => Comparison::Equal,
            Token::Operator("!=") => Comparison::NotEqual,
            Token::Operator("<") => Comparison::Less,
            Token::Operator("<=") => Comparison::LessOrEqual,
            Token::Operator(">") => Comparison::Greater,
            Token::Operator(">=") => Comparison::GreaterOrEqual,
            Token::Name(name) if name.as_ref() == "in" => Comparison::In,
            Token::Name(name) if name.as_ref() == "not" => match self.next_token() {
                Token::Name(next) if next.as_ref() == "in" => Comparison::NotIn,
                _ => return None,
            },
            _ => return None,
        };
        self.at += if comparison == Comparison::NotIn { 2 } else { 1 };
        Some(comparison)
    }

    fn sum(&mut self) -> Result<Expr> {
        self.arithmetic(Self::concat, |operator| match operator {
            "+" => Some(Operator::Add),
            "-" => Some(Operator::Subtract),
            _ => None,
        })
    }

    fn product(&mut self) -> Result<Expr> {
        self.arithmetic(Self::power, |operator| match operator {
            "*" => Some(Operator::Multiply),
            "/" => Some(Operator::Divide),
            "//" => Some(Operator::FloorDivide),
            "%" => Some(Operator::Remainder),
            _ => None,
        })
    }

    fn power(&mut self) -> Result<Expr> {
        self.arithmetic(|parser| parser.unary(true), |operator| (operator == "**").then_some(Operator::Power))
    }

    /// Operands with operators of one precedence between them.
    fn arithmetic(
        &mut self,
        operand: fn(&mut Self) -> Result<Expr>,
        operator: fn(&str) -> Option<Operator>,
    ) -> Result<Expr> {
        let line = self.line();
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Token::Operator(found) = self.token()
            && let Some(operator) = operator(found)
        {
            self.at += 1;
            rest.push((operator, operand(self)?));
            check_chain(rest.len())?;
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr { line, kind: ExprKind::Arithmetic(Box::new(first), rest) },
        })
    }

    /// A sign, or a primary expression, with all that follows it. Filters apply to what a sign has been applied to.
    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let line = self.line();
        let base = if self.skip_operator("-") {
            let inner = self.deeper(|parser| parser.unary(false))?;
            Expr { line, kind: ExprKind::Negative(Box::new(inner)) }
        } else if self.skip_operator("+") {
            let inner = self.deeper(|parser| parser.unary(false))?;
            Expr { line, kind: ExprKind::Positive(Box::new(inner)) }
        } else {
            self.primary()?
        };
        let mut postfixes = Vec::new();
        self.subscripts_and_calls(&mut postfixes)?;
        if with_filters {
            self.filters_tests_and_calls(&mut postfixes)?;
        }
        Ok(with_postfixes(base, postfixes))
    }

    fn filters_tests_and_calls(&mut self, postfixes: &mut Vec<Postfix>) -> Result<()> {
        loop {
            check_chain(postfixes.len())?;
            let line = self.line();
            if self.skip_operator("|") {
                postfixes.push(self.filter()?);
            } else if self.skip_name("is") {
                postfixes.push(Postfix { line, kind: self.test()? });
            } else if self.is_operator("(") {
                postfixes.push(Postfix { line, kind: PostfixKind::Call(self.arguments()?) });
            } else {
                return Ok(());
            }
        }
    }

    fn subscripts_and_calls(&mut self, postfixes: &mut Vec<Postfix>) -> Result<()> {
        loop {
            let line = self.line();
            let kind = if self.skip_operator(".") {
                self.attribute()?
            } else if self.skip_operator("[") {
                self.subscript()?
            } else if self.is_operator("(") {
                PostfixKind::Call(self.arguments()?)
            } else {
                return Ok(());
            };
            postfixes.push(Postfix { line, kind });
            check_chain(postfixes.len())?;
        }
    }

    fn attribute(&mut self) -> Result<PostfixKind> {
        let line = self.line();
        match self.token().clone() {
            Token::Name(name) => {
                self.at += 1;
                Ok(PostfixKind::Attribute(name))
            }
            token @ Token::Integer(_) => {
                self.at += 1;
                let index = token.number().unwrap_or(Value::None);
                Ok(PostfixKind::Item(Expr { line, kind: ExprKind::Constant(index) }))
            }
            other => fail!("expected a name or number after '.', found '{}'", other.describe()),
        }
    }

    fn subscript(&mut self) -> Result<PostfixKind> {
        let line = self.line();
        let mut items = Vec::new();
        while !self.is_operator("]") {
            if !items.is_empty() {
                self.expect_operator(",")?;
            }
            let start = if self.is_operator(":") { None } else { Some(self.expression()?) };
            if !self.is_operator(":") {
                items.extend(start);
                continue;
            }
            let slice = self.slice(start)?;
            if !items.is_empty() || !self.skip_operator("]") {
                fail!("a slice cannot stand beside other indices");
            }
            return Ok(PostfixKind::Slice(Box::new(slice)));
        }
        self.at += 1;
        Ok(PostfixKind::Item(match items.pop() {
            Some(item) if items.is_empty() => item,
            last => {
                items.extend(last);
                Expr { line, kind: ExprKind::Tuple(items) }
            }
        }))
    }

    /// The rest of `start:stop:step`, from the first colon.
    fn slice(&mut self, start: Option<Expr>) -> Result<[Option<Expr>; 3]> {
        let mut slice = [start, None, None];
        for place in &mut slice[1..] {
            if !self.skip_operator(":") {
                break;
            }
            if !self.is_operator(":") && !self.is_operator("]") && !self.is_operator(",") {
                *place = Some(self.expression()?);
            }
        }
        Ok(slice)
    }

    fn primary(&mut self) -> Result<Expr> {
        let line = self.line();
        let token = self.token().clone();
        let kind = match token {
            Token::Name(name) => {
                self.at += 1;
                self.name(name)
            }
            Token::Text(first) => {
                let mut text = first;
                self.at += 1;
                while let Token::Text(more) = self.token() {
                    text.push_str(more);
                    self.at += 1;
                }
                ExprKind::Constant(Value::from(text))
            }
            Token::Integer(_) | Token::Float(_) => {
                self.at += 1;
                ExprKind::Constant(token.number().unwrap_or(Value::None))
            }
            Token::Operator("(") => {
                self.at += 1;
                if self.skip_operator(")") {
                    ExprKind::Tuple(Vec::new())
                } else {
                    let inner = self.tuple(Items::Any, &[])?;
                    self.expect_operator(")")?;
                    return Ok(inner);
                }
            }
            Token::Operator("[") => self.list()?,
            Token::Operator("{") => self.dict()?,
            other => fail!("unexpected '{}'", other.describe()),
        };
        Ok(Expr { line, kind })
    }

    fn name(&mut self, name: Rc<str>) -> ExprKind {
        match name.as_ref() {
            "true" | "True" => return ExprKind::Constant(Value::Bool(true)),
            "false" | "False" => return ExprKind::Constant(Value::Bool(false)),
            "none" | "None" => return ExprKind::Constant(Value::None),
            _ => {}
        }
        for names in &mut self.macros {
            let assigned = names.assigned.of(&name).is_some_and(|assigned| *assigned);
            if let Some(read) = names.read.of(&name) {
                *read |= !assigned;
            }
        }
        ExprKind::Name(name)
    }

    fn list(&mut self) -> Result<ExprKind> {
        self.at += 1;
        let mut items = Vec::new();
        while !self.is_operator("]") {
            items.push(self.expression()?);
            if !self.skip_operator(",") {
                break;
            }
        }
        self.expect_operator("]")?;
        Ok(ExprKind::List(items))
    }

    fn dict(&mut self) -> Result<ExprKind> {
        self.at += 1;
        let mut entries = Vec::new();
        while !self.is_operator("}") {
            let key = self.expression()?;
            self.expect_operator(":")?;
            entries.push((key, self.expression()?));
            if !self.skip_operator(",") {
                break;
            }
        }
        self.expect_operator("}")?;
        Ok(ExprKind::Dict(entries))
    }

    fn arguments(&mut self) -> Result<Arguments> {
        self.expect_operator("(")?;
        let mut arguments = Arguments::default();
        while !self.is_operator(")") {
            self.argument(&mut arguments)?;
            if !self.skip_operator(",") {
                break;
            }
        }
        self.expect_operator(")")?;
        Ok(arguments)
    }

    fn argument(&mut self, arguments: &mut Arguments) -> Result<()> {
        let is_spread = arguments.spread.is_some();
        let is_spread_named = arguments.spread_named.is_some();
        let (allowed, place) = if self.skip_operator("*") {
            arguments.spread = Some(Box::new(self.expression()?));
            (!is_spread && !is_spread_named, "*")
        } else if self.skip_operator("**") {
            arguments.spread_named = Some(Box::new(self.expression()?));
            (!is_spread_named, "**")
        } else if matches!((self.token(), self.next_token()), (Token::Name(_), Token::Operator("="))) {
            let name = self.expect_name()?;
            self.at += 1;
            if arguments.named.iter().any(|(other, _)| *other == name) {
                fail!("the keyword argument '{name}' is repeated");
            }
            arguments.named.push((name, self.expression()?));
            (!is_spread_named, "keyword")
        } else {
            arguments.positional.push(self.expression()?);
            (!is_spread && !is_spread_named && arguments.named.is_empty(), "positional")
        };
        match allowed {
            true => Ok(()),
            false => fail!("a {place} argument stands after others that must follow it"),
        }
    }

    // Filters and tests.

    /// `| name(arguments) | …`, if there are any.
    fn filters(&mut self) -> Result<Vec<Postfix>> {
        let mut filters = Vec::new();
        while self.skip_operator("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    /// A filter, from its name on.
    fn filter(&mut self) -> Result<Postfix> {
        let line = self.line();
        let name = self.dotted_name()?;
        self.note_unknown("filter", &name, FILTERS, line);
        let arguments = if self.is_operator("(") { self.arguments()? } else { Arguments::default() };
        Ok(Postfix { line, kind: PostfixKind::Filter(name, arguments) })
    }

    /// A test, from behind its `is`.
    fn test(&mut self) -> Result<PostfixKind> {
        let line = self.line();
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        self.note_unknown("test", &name, TESTS, line);
        let arguments = if self.is_operator("(") {
            self.arguments()?
        } else if self.begins_argument_of_test()? {
            let base = self.deeper(Self::primary)?;
            let mut postfixes = Vec::new();
            self.subscripts_and_calls(&mut postfixes)?;
            Arguments { positional: vec![with_postfixes(base, postfixes)], ..Arguments::default() }
        } else {
            Arguments::default()
        };
        Ok(PostfixKind::Test { name, arguments, negated })
    }

    /// Tells if the next token is an argument without parentheses, as in `x is divisibleby 3`.
    fn begins_argument_of_test(&self) -> Result<bool> {
        Ok(match self.token() {
            Token::Name(name) if name.as_ref() == "is" => fail!("tests with 'is' cannot be chained"),
            Token::Name(name) => !matches!(name.as_ref(), "else" | "or" | "and"),
            Token::Text(_) | Token::Integer(_) | Token::Float(_) | Token::Operator("(" | "[" | "{") => true,
            _ => false,
        })
    }

    fn dotted_name(&mut self) -> Result<Rc<str>> {
        let name = self.expect_name()?;
        if !self.is_operator(".") {
            return Ok(name);
        }
        let mut dotted = name.to_string();
        while self.skip_operator(".") {
            dotted.push('.');
            dotted.push_str(&self.expect_name()?);
        }
        Ok(dotted.into())
    }

    fn note_unknown(&mut self, kind: &str, name: &str, table: &[Native], line: u32) {
        if !table.iter().any(|native| native.name == name) {
            self.unknown.push(Error::new(format!("no {kind} named '{name}'")).at(line));
        }
    }
}

fn check_chain(len: usize) -> Result<()> {
    match len > MAX_CHAIN {
        true => fail!("a chain of more than {MAX_CHAIN} operands, filters or branches is too long"),
        false => Ok(()),
    }
}

fn with_postfixes(base: Expr, postfixes: Vec<Postfix>) -> Expr {
    match postfixes.is_empty() {
        true => base,
        false => Expr { line: base.line, kind: ExprKind::Postfix(Box::new(base), postfixes) },
    }
}
