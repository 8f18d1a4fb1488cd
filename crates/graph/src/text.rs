//! The text form: one line per input, state, accumulator, node and output; it prints and parses.

use crate::{Builder, Graph, GraphError, Init, Input, Op, Origin, Role, ValueId};
use plimsoll_tensor::TensorType;
use std::{collections::BTreeMap, fmt, sync::Arc};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = |value: serde_json::Result<String>| value.map_err(|_| fmt::Error);
        let list = |values: &[ValueId]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(
            f,
            "graph examples={} block={} micro_batches={}",
            self.examples, self.example_block, self.micro_batches
        )?;
        let unrolled = if self.unrolled > 1 { format!(" unrolled={}", self.unrolled) } else { String::new() };
        writeln!(f, "{unrolled}")?;
        for value in self.value_ids() {
            let ty = self.ty(value);
            match self.origin(value) {
                Origin::Input(i) => {
                    let input = &self.inputs[i];
                    let kind = if input.batched { "batch" } else { "setting" };
                    let part = if input.part > 0 { format!(" of {}", input.part) } else { String::new() };
                    writeln!(
                        f,
                        "{kind} {value}: {ty} = {}{part}",
                        json(serde_json::to_string(&input.name))?
                    )?;
                }
                Origin::State(i) => {
                    let s = &self.states[i];
                    let header = json(serde_json::to_string(&(&s.name, s.role, s.init)))?;
                    writeln!(f, "state {value}: {ty} = {header}")?;
                }
                Origin::Accumulator(_) => writeln!(f, "accumulator {value}: {ty}")?,
                Origin::Node { node, output: 0 } => {
                    let node = self.node(node);
                    let types: Vec<_> =
                        node.outputs.iter().map(|&v| format!("{v}: {}", self.ty(v))).collect();
                    write!(
                        f,
                        "{} = {}({})",
                        types.join(", "),
                        json(serde_json::to_string(&node.op))?,
                        list(&node.inputs)
                    )?;
                    if !node.accumulate.is_empty() {
                        write!(f, " += ({})", list(&node.accumulate))?;
                    }
                    writeln!(f, " @{}", json(serde_json::to_string(&*node.layer))?)?;
                }
                Origin::Node { .. } => {}
            }
        }
        for state in &self.states {
            if let Some(output) = state.output {
                writeln!(f, "write {} = {output}", state.input)?;
            }
        }
        for accumulator in &self.accumulators {
            writeln!(f, "accumulate {} = {}", accumulator.input, accumulator.output)?;
        }
        for output in &self.outputs {
            writeln!(f, "output {} = {}", json(serde_json::to_string(&output.name))?, output.value)?;
        }
        Ok(())
    }
}

/// Parses the text form and checks the graph.
pub fn parse(text: &str) -> Result<Graph, GraphError> {
    let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let (_, header) =
        lines.next().ok_or_else(|| GraphError::Parse { line: 1, reason: "empty text".into() })?;
    let mut parser = parse_header(header).map_err(|reason| GraphError::Parse { line: 1, reason })?;
    for (i, line) in lines {
        parser.line(line.trim()).map_err(|reason| GraphError::Parse { line: i + 1, reason })?;
    }
    parser.builder.finish()
}

struct Parser {
    builder: Builder,
    /// Ids in the text to ids in the graph; the same for printed graphs.
    ids: BTreeMap<u32, ValueId>,
}

fn parse_header(line: &str) -> Result<Parser, String> {
    let bad = || "expected `graph examples=N block=N micro_batches=N`".to_string();
    let mut words = line.split_whitespace();
    if words.next() != Some("graph") {
        return Err(bad());
    }
    let mut field = |name: &str| -> Result<usize, String> {
        let word = words.next().and_then(|w| w.strip_prefix(name)).and_then(|w| w.strip_prefix('='));
        word.and_then(|w| w.parse().ok()).ok_or_else(bad)
    };
    let mut builder = Builder::new(field("examples")?, field("block")?);
    builder.set_micro_batches(field("micro_batches")?);
    if line.contains(" unrolled=") {
        builder.set_unrolled(field("unrolled")?);
    }
    Ok(Parser { builder, ids: BTreeMap::new() })
}

fn after<'a>(text: &'a str, mark: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once(mark)
        .map(|(a, b)| (a.trim(), b.trim()))
        .ok_or_else(|| format!("expected `{mark}` in `{text}`"))
}

fn json<'a, T: serde::Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| format!("`{text}`: {e}"))
}

fn id(text: &str) -> Result<u32, String> {
    let number = text.trim().strip_prefix('%').and_then(|n| n.parse().ok());
    number.ok_or_else(|| format!("`{text}` is not a value like %3"))
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "batch" | "setting" => {
                let (definition, name) = after(rest, "=")?;
                let (number, ty) = typed(definition)?;
                let (name, part) = match name.rsplit_once("\" of ") {
                    Some((start, part)) if !name.ends_with('"') => (format!("{start}\""), Some(part)),
                    _ => (name.to_string(), None),
                };
                let part =
                    part.map_or(Ok(0), |part| part.parse().map_err(|_| format!("`{part}` is no number")))?;
                let batched = word == "batch";
                let input = Input { name: json::<String>(&name)?, value: ValueId(0), batched, part };
                let value = self.builder.input_like(&input, ty);
                self.define(number, value)
            }
            "state" => {
                let (definition, header) = after(rest, "=")?;
                let (number, ty) = typed(definition)?;
                let (name, role, init): (String, Role, Init) = json(header)?;
                let value = self.builder.named_state(name, ty, role, init);
                self.define(number, value)
            }
            "accumulator" => {
                let (number, ty) = typed(rest)?;
                let value = self.builder.accumulator(ty);
                self.define(number, value)
            }
            "write" | "accumulate" => {
                let (input, output) = after(rest, "=")?;
                let (input, output) = (self.value(input)?, self.value(output)?);
                match (word, self.builder.graph().origin(input)) {
                    ("write", Origin::State(_)) => self.builder.set_state(input, output),
                    ("accumulate", Origin::Accumulator(_)) => self.builder.set_accumulator(input, output),
                    _ => return Err(format!("{input} cannot be written by `{word}`")),
                }
                Ok(())
            }
            "output" => {
                let (name, value) = rest.rsplit_once('=').ok_or("expected `=`")?;
                let value = self.value(value)?;
                self.builder.output(&json::<String>(name.trim())?, value);
                Ok(())
            }
            _ => self.node(line),
        }
    }

    fn node(&mut self, line: &str) -> Result<(), String> {
        let (definitions, rest) = after(line, " = ")?;
        // Quotes inside the layer's name are escaped, so the last ` @"` starts it.
        let (call, layer) = rest.rsplit_once(" @\"").ok_or("expected `@\"layer\"`")?;
        let layer: String = json(&format!("\"{layer}"))?;
        let (call, sums) = call.split_once(" += ").map_or((call, None), |(c, s)| (c, Some(s)));
        let (op, inputs) = call.trim().rsplit_once('(').ok_or("expected `op(inputs)`")?;
        let op: Op = json(op)?;
        let inputs = self.values(inputs)?;
        let sums = sums.map_or(Ok(Vec::new()), |s| self.values(s.trim().trim_start_matches('(')))?;
        let build = |b: &mut Builder| b.accumulating(op, &inputs, &sums);
        let outputs = self.builder.within(Arc::from(layer), build).map_err(|e| e.to_string())?;
        // Types contain commas, so the definitions are split where a new value begins.
        let definitions: Vec<_> = definitions.split(", %").collect();
        if definitions.len() != outputs.len() {
            return Err(format!("the op has {} outputs, {} are named", outputs.len(), definitions.len()));
        }
        for (definition, value) in definitions.into_iter().zip(outputs) {
            let (number, ty) = typed(&format!("%{}", definition.trim_start_matches('%')))?;
            if *self.builder.ty(value) != ty {
                return Err(format!("%{number} is written as {ty}, the op gives {}", self.builder.ty(value)));
            }
            self.define(number, value)?;
        }
        Ok(())
    }

    fn values(&self, list: &str) -> Result<Vec<ValueId>, String> {
        let list = list.trim().strip_suffix(')').ok_or("expected `)`")?.trim();
        if list.is_empty() { Ok(Vec::new()) } else { list.split(',').map(|v| self.value(v)).collect() }
    }

    fn value(&self, text: &str) -> Result<ValueId, String> {
        let number = id(text)?;
        self.ids.get(&number).copied().ok_or_else(|| format!("%{number} is not written yet"))
    }

    fn define(&mut self, number: u32, value: ValueId) -> Result<(), String> {
        match self.ids.insert(number, value) {
            None => Ok(()),
            Some(_) => Err(format!("%{number} is written twice")),
        }
    }
}

fn typed(definition: &str) -> Result<(u32, TensorType), String> {
    let (value, ty) = after(definition, ":")?;
    Ok((id(value)?, ty.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = r#"graph examples=2 block=1 micro_batches=2
batch %0: f32[2,3] = "x, the \"input\""
state %1: f32[3,2] = ["dense/kernel","parameter",{"uniform":0.1}]
accumulator %2: f32[3,2]
%3: f32[2,2] = {"mat_mul":{"transpose_a":false,"transpose_b":false,"epilogue":{"bias":false,"relu":false}}}(%0, %1) @"dense, @ \"home\""
%4: f32[3,2] = {"mat_mul":{"transpose_a":true,"transpose_b":false,"epilogue":{"bias":false,"relu":false}}}(%0, %3) += (%2) @"dense, @ \"home\""
%5: f32[3,2] = {"elementwise":{"binary":"sub"}}(%1, %4) @"dense, @ \"home\""
write %1 = %5
accumulate %2 = %4
output "y" = %3
"#;

    #[test]
    fn the_text_form_prints_and_parses() {
        assert_eq!(parse(TEXT).unwrap().to_string(), TEXT);
        let unrolled = "graph examples=2 block=1 micro_batches=1 unrolled=2\nbatch %0: f32[2] = \"x\\\" of \"\n\
                        batch %1: f32[2] = \"x\\\" of \" of 1\noutput \"y\" = %1\n";
        let graph = parse(unrolled).unwrap();
        assert_eq!((graph.to_string().as_str(), graph.step_micro_batches()), (unrolled, 2));
        assert!(graph.inputs[0].name == "x\" of " && graph.inputs.iter().map(|input| input.part).eq([0, 1]));
        assert!(parse(&unrolled.replace("of 1", "of one")).is_err());
    }

    #[test]
    fn mistakes_are_named_by_line() {
        let wrong = |from: &str, to: &str| parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(wrong("graph", "graf").contains("line 1"));
        assert!(wrong("%3: f32[2,2]", "%3: f32[2,3]").contains("line 5"));
        assert!(wrong("(%0, %1)", "(%0, %9)").contains("%9 is not written yet"));
        assert!(wrong("mat_mul", "mat_mull").contains("line 5"));
        assert!(wrong("%5: f32[3,2] =", "%4: f32[3,2] =").contains("written twice"));
        assert!(wrong("write %1", "write %0").contains("cannot be written"));
        assert!(wrong("f32[3,2] = [", "f99[3,2] = [").contains("f99"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = parse(&text);
        }

        /// A damaged graph gets further into the parser than noise does.
        #[test]
        fn damaged_graphs_do_not_panic(at in 0..TEXT.len(), len in 0usize..40, with in ".{0,12}") {
            let mut text = TEXT.to_string();
            let end = (at + len).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) {
                text.replace_range(at..end, &with);
                let _ = parse(&text);
            }
        }
    }
}
