//! How large a model is, before it is built.

/// How many numbers a model holds, and how many it makes of a sample. Numbers of any size: nothing overflows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Size {
    /// Parameters.
    pub parameters: f64,
    /// Numbers of a sample.
    pub inputs: f64,
    /// Numbers that a forward pass makes of a sample, and keeps until the backward pass has gone by.
    pub activations: f64,
    /// How many times as much is there in the midst of that: with it, gradients on their way. Measured.
    pub with_backward: f64,
}

impl Size {
    /// Another layer: a product with a matrix, as many times for a sample as it has rows there.
    pub(super) fn layer(&mut self, rows: f64, inputs: f64, outputs: f64, has_bias: bool) {
        self.parameters += inputs * outputs + if has_bias { outputs } else { 0.0 };
        self.activations += rows * outputs;
    }
}
