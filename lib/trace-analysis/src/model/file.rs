//! A model as a TOML file.

use super::{Invalid, Model};

/// First lines of a file, for readers.
const HEADER: &str = "# The I/O of an application, whatever the machine: see docs/guide/model.md.
# Sizes and offsets are bytes. `measured` says what one machine made of it; a benchmark does not need it.

";

impl Model {
    /// Returns the text of a file.
    ///
    /// # Errors
    /// Values that TOML cannot represent.
    pub fn to_toml(&self) -> Result<String, Invalid> {
        let text = toml::to_string(self).map_err(|error| Invalid(format!("cannot be written: {error}")))?;
        Ok(format!("{HEADER}{text}"))
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// The first defect and its position.
    pub fn from_toml(text: &str) -> Result<Model, Invalid> {
        let model: Model =
            toml::from_str(text).map_err(|error| Invalid(error.to_string().trim_end().to_owned()))?;
        model.check()?;
        Ok(model)
    }
}

#[cfg(test)]
mod tests {
    use super::Model;
    use crate::model::tests::bt_io;
    use crate::model::{Measured, Numbers};

    #[test]
    fn written_models_are_read_back() {
        let mut model = bt_io(36, 50, 72 << 20);
        model.phases[0].measured = Some(Measured { seconds: 0.1 + 0.2, ticks: (3, 7), ..Default::default() });
        model.phases[1].operations[0].restarts = vec![Numbers::constant(0)];
        model.phases[1].operations[0].offset = Numbers::List(vec![3, 1, 2]);
        model.uncertain = vec!["events of processes 1-3 were \"lost\"\n".into()];
        let text = model.to_toml().unwrap();
        assert_eq!(Model::from_toml(&text).unwrap(), model, "{text}");
    }

    #[test]
    fn errors_contain_their_position() {
        let text = bt_io(4, 3, 100).to_toml().unwrap();
        let wrong =
            |from: &str, to: &str| Model::from_toml(&text.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(wrong("weight = 400", "weight = 401").contains("phase 1-3: weight is 401"));
        assert!(wrong("format = 1", "format = 9").contains("format 1"));
        assert!(wrong("size = 100", "size = \"much\"").contains("line"));
        assert!(wrong("size = 100", "sise = 100").contains("sise"));
        assert!(wrong("numbers = \"1-3\"", "numbers = \"3-1\"").contains("3-1"));
        assert!(Model::from_toml("").unwrap_err().to_string().contains("format"));
    }
}
