//! Check of JSON values against a JSON Schema, for the keywords that `docs/reference/json.schema.json` uses.
//!
//! An unknown keyword is a problem, so that no rule of a schema is skipped.

use serde_json::{Map, Value};

/// Schema with its definitions.
pub struct Schema(Value);

impl Schema {
    /// Parses a schema.
    ///
    /// # Panics
    /// If the text is no JSON.
    pub fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).expect("a schema is JSON"))
    }

    /// Names of the definitions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let definitions = self.0["$defs"].as_object();
        definitions
            .into_iter()
            .flat_map(Map::keys)
            .map(String::as_str)
    }

    /// Problems of a value, one line each, with its definition of this name.
    pub fn problems(&self, name: &str, value: &Value) -> Vec<String> {
        let mut problems = Vec::new();
        match self.0["$defs"].get(name) {
            Some(schema) => self.check(schema, value, name, &mut problems),
            None => problems.push(format!("{name}: there is no such definition")),
        }
        problems
    }

    /// Objects and properties without a description.
    pub fn undescribed(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, schema) in self.0["$defs"].as_object().into_iter().flatten() {
            undescribed(schema, name, &mut found);
        }
        found
    }

    fn check(&self, schema: &Value, value: &Value, place: &str, problems: &mut Vec<String>) {
        let Some(keywords) = schema.as_object() else {
            return problems.push(format!("{place}: its schema is no object"));
        };
        for (keyword, rule) in keywords {
            let fits = match keyword.as_str() {
                "description" => true,
                "type" => has_type(rule, value),
                "const" => rule == value,
                "enum" => rule.as_array().is_some_and(|values| values.contains(value)),
                "minimum" => value
                    .as_f64()
                    .is_none_or(|n| rule.as_f64().is_some_and(|min| n >= min)),
                "$ref" => {
                    let name = rule.as_str().and_then(|text| text.strip_prefix("#/$defs/"));
                    problems.extend(self.problems(name.unwrap_or_default(), value));
                    true
                }
                "anyOf" => self.any(rule, value, place, problems),
                "items" => {
                    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(rule, item, &format!("{place}[{i}]"), problems);
                    }
                    true
                }
                "required" => {
                    let names = rule
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter_map(Value::as_str);
                    let missing =
                        names.filter(|name| value.is_object() && value.get(name).is_none());
                    problems.extend(missing.map(|name| format!("{place}: {name} is missing")));
                    true
                }
                "properties" => {
                    for (name, rule) in rule.as_object().into_iter().flatten() {
                        if let Some(value) = value.get(name) {
                            self.check(rule, value, &format!("{place}.{name}"), problems);
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    let known = &schema["properties"];
                    let all = value.as_object().into_iter().flatten();
                    for (name, value) in all.filter(|(name, _)| known.get(name.as_str()).is_none())
                    {
                        let place = format!("{place}.{name}");
                        match rule {
                            Value::Bool(false) => {
                                problems.push(format!("{place} is not in the schema"))
                            }
                            rule => self.check(rule, value, &place, problems),
                        }
                    }
                    true
                }
                other => {
                    problems.push(format!("{place}: keyword {other} is not implemented"));
                    true
                }
            };
            if !fits {
                problems.push(format!("{place}: {value} does not fit {keyword} {rule}"));
            }
        }
    }

    /// Returns true if one of several schemas fits. The problems of all are reported otherwise.
    fn any(&self, rules: &Value, value: &Value, place: &str, problems: &mut Vec<String>) -> bool {
        let mut all = Vec::new();
        for rule in rules.as_array().into_iter().flatten() {
            let mut found = Vec::new();
            self.check(rule, value, place, &mut found);
            if found.is_empty() {
                return true;
            }
            all.extend(found);
        }
        problems.extend(all);
        false
    }
}

fn has_type(rule: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    };
    match rule.as_array() {
        Some(names) => names.iter().any(is),
        None => is(rule),
    }
}

fn undescribed(schema: &Value, place: &str, found: &mut Vec<String>) {
    if !schema.is_object() {
        return;
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        if property["description"].as_str().is_none_or(str::is_empty) {
            found.push(place.clone());
        }
        undescribed(property, &place, found);
    }
    for below in [&schema["items"], &schema["additionalProperties"]] {
        undescribed(below, place, found);
    }
    for below in schema["anyOf"].as_array().into_iter().flatten() {
        undescribed(below, place, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(schema: Value, value: Value) -> Vec<String> {
        Schema(json!({"$defs": {"it": schema}})).problems("it", &value)
    }

    #[test]
    fn each_keyword_can_fail() {
        for (schema, good, bad) in [
            (json!({"type": "integer"}), json!(-1), json!("1")),
            (json!({"type": ["string", "null"]}), json!(null), json!(1)),
            (json!({"const": "done"}), json!("done"), json!("open")),
            (json!({"enum": ["a", "b"]}), json!("b"), json!("c")),
            (json!({"minimum": 0}), json!(0), json!(-1)),
            (
                json!({"items": {"type": "string"}}),
                json!(["a"]),
                json!(["a", 1]),
            ),
            (json!({"required": ["a"]}), json!({"a": 1}), json!({})),
            (
                json!({"properties": {"a": {"type": "null"}}}),
                json!({}),
                json!({"a": 1}),
            ),
            (
                json!({"additionalProperties": false}),
                json!({}),
                json!({"a": 1}),
            ),
            (
                json!({"anyOf": [{"const": 1}, {"const": 2}]}),
                json!(2),
                json!(3),
            ),
        ] {
            assert_eq!(
                problems(schema.clone(), good),
                Vec::<String>::new(),
                "{schema}"
            );
            assert_ne!(
                problems(schema.clone(), bad),
                Vec::<String>::new(),
                "{schema}"
            );
        }
        assert_eq!(problems(json!({"pattern": "x"}), json!("x")).len(), 1);
        assert_eq!(problems(json!({"$ref": "#/$defs/none"}), json!(1)).len(), 1);
    }

    #[test]
    fn properties_without_a_description_are_found() {
        let schema = Schema(json!({"$defs": {"it": {"properties": {
            "a": {"description": "A"},
            "b": {"description": "B", "items": {"properties": {"c": {}}}},
        }}}}));
        assert_eq!(schema.undescribed(), ["it.b.c"]);
    }
}
