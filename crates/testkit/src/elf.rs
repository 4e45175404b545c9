//! ELF files of a few hundred bytes, made by hand.

/// Addresses are places in the file plus this.
const BASE: u64 = 0x1_0000;

/// Library of one segment. Parts whose text is empty are left out.
pub struct Sample {
    /// Addresses have 64 bits instead of 32.
    pub is_wide: bool,
    /// The least significant byte comes first.
    pub is_little: bool,
    /// Number of the processor.
    pub machine: u16,
    /// Path of the dynamic loader.
    pub interpreter: &'static str,
    /// Names of needed libraries.
    pub needed: Vec<&'static str>,
    /// Name of the library.
    pub soname: &'static str,
    /// Value of `DT_RPATH`.
    pub rpath: &'static str,
    /// Value of `DT_RUNPATH`.
    pub runpath: &'static str,
    /// JSON of a note about `dlopen`.
    pub note: &'static str,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            is_wide: true,
            is_little: true,
            machine: 62,
            interpreter: "",
            needed: Vec::new(),
            soname: "",
            rpath: "",
            runpath: "",
            note: "",
        }
    }
}

impl Sample {
    fn put(&self, out: &mut Vec<u8>, value: u64, len: usize) {
        let bytes = value.to_le_bytes();
        match self.is_little {
            true => out.extend(&bytes[..len]),
            false => out.extend(bytes[..len].iter().rev()),
        }
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let wide = self.is_wide;
        let word = if wide { 8 } else { 4 };
        let (head_len, header_len) = if wide { (64, 56) } else { (52, 32) };
        let strings_at = head_len + 4 * header_len;
        let mut strings = vec![0];
        let mut dynamic = Vec::new();
        let string = |text: &str, strings: &mut Vec<u8>| {
            let at = strings.len() as u64;
            strings.extend(text.as_bytes());
            strings.push(0);
            at
        };
        for name in &self.needed {
            dynamic.push((1, string(name, &mut strings)));
        }
        for (tag, text) in [(14, self.soname), (15, self.rpath), (29, self.runpath)] {
            if !text.is_empty() {
                dynamic.push((tag, string(text, &mut strings)));
            }
        }
        let interpreter_at = strings_at + strings.len();
        strings.extend(self.interpreter.as_bytes());
        strings.push(0);
        dynamic.extend([
            (5, BASE + strings_at as u64),
            (10, strings.len() as u64),
            (0, 0),
        ]);
        let dynamic_at = (strings_at + strings.len()).next_multiple_of(8);
        let dynamic_len = dynamic.len() * 2 * word;
        let note_at = dynamic_at + dynamic_len;
        let mut note = Vec::new();
        if !self.note.is_empty() {
            self.put(&mut note, 4, 4);
            self.put(&mut note, self.note.len() as u64 + 1, 4);
            self.put(&mut note, 0x407c_0c0a, 4);
            note.extend(b"FDO\0");
            note.extend(self.note.as_bytes());
            note.resize(note.len().next_multiple_of(4) + 4, 0);
        }
        let all = note_at + note.len();

        let mut out = vec![0x7f, b'E', b'L', b'F', 1 + u8::from(wide)];
        out.extend([2 - u8::from(self.is_little), 1]);
        out.resize(16, 0);
        self.put(&mut out, 3, 2);
        self.put(&mut out, self.machine.into(), 2);
        self.put(&mut out, 1, 4);
        self.put(&mut out, 0, word);
        self.put(&mut out, head_len as u64, word);
        self.put(&mut out, 0, word);
        self.put(&mut out, 0, 4);
        for value in [head_len, header_len, 4, 0, 0, 0] {
            self.put(&mut out, value as u64, 2);
        }
        let interpreter_len = match self.interpreter {
            "" => 0,
            text => text.len() + 1,
        };
        for (kind, at, len) in [
            (1, 0, all),
            (2, dynamic_at, dynamic_len),
            (
                if interpreter_len > 0 { 3 } else { 0 },
                interpreter_at,
                interpreter_len,
            ),
            (4, note_at, note.len()),
        ] {
            let (at, len) = (at as u64, len as u64);
            self.put(&mut out, kind, 4);
            if wide {
                self.put(&mut out, 4, 4);
            }
            for value in [at, BASE + at, BASE + at, len, len] {
                self.put(&mut out, value, word);
            }
            if !wide {
                self.put(&mut out, 4, 4);
            }
            self.put(&mut out, 4, word);
        }
        out.extend(strings);
        out.resize(dynamic_at, 0);
        for (tag, value) in dynamic {
            self.put(&mut out, tag, word);
            self.put(&mut out, value, word);
        }
        out.extend(note);
        out
    }
}
