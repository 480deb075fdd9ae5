//! Properties of every candle model.

use candle_core::{DType, Device, Tensor};
use candle_nn::Module;

use super::*;
use unisono_train::Fill;

impl Parameters {
    /// Returns a set on the CPU whose layers are composed, as on a GPU.
    pub(crate) fn composed(seed: u64) -> Self {
        let mut parameters = Self::new(seed);
        parameters.has_loops = false;
        parameters
    }
}

/// Gradients by the index of their parameter.
#[derive(Default)]
struct Gathered {
    tally: Option<LossSums>,
    gradients: Vec<(usize, Vec<f32>)>,
    sizes: Vec<usize>,
}

impl Gradients for Gathered {
    fn record_loss(&mut self, tally: LossSums) {
        assert!(self.tally.replace(tally).is_none(), "weighed twice");
    }

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let mut gradient = vec![1.0; self.sizes[index]];
        write(&mut gradient, Fill::Add);
        let mut again = vec![f32::NAN; self.sizes[index]];
        write(&mut again, Fill::Set);
        let is_sum = |(added, set): (&f32, &f32)| (added - 1.0 - set).abs() < 1e-5 * (1.0 + set.abs());
        assert!(gradient.iter().zip(&again).all(is_sum));
        self.gradients.push((index, again));
    }
}

fn gathered<R: Replica>(replica: &mut R, batch: &R::Batch) -> Gathered {
    let sizes = replica.parameters().iter().map(Parameter::count).collect();
    let mut gathered = Gathered { sizes, ..Gathered::default() };
    replica.pass(batch, &mut gathered).unwrap();
    gathered
}

/// Returns the sums of a pass, and its gradients by the index of their parameter.
pub(crate) fn gradients_of<R: Replica>(
    replica: &mut R,
    batch: &R::Batch,
) -> (LossSums, Vec<(usize, Vec<f32>)>) {
    let Gathered { tally, gradients, .. } = gathered(replica, batch);
    (tally.expect("the pass is weighed"), gradients)
}

/// Returns a replica whose loss is the sum of the squares of the results of `forward`.
fn replica<F: Fn(&Tensor) -> candle_core::Result<Tensor>>(
    parameters: &Parameters,
    forward: F,
) -> Network<Tensor, impl Fn(&Tensor) -> candle_core::Result<Loss> + use<F>> {
    Network::new(parameters, move |batch: &Tensor| {
        let sum = forward(batch)?.sqr()?.sum_all()?;
        let loss = f64::from(sum.to_scalar::<f32>()?);
        Ok(Loss { sum, tally: LossSums { targets: batch.dim(0)? as f64, loss, correct: 0.0 } })
    })
}

/// Checks that every parameter has a gradient, and that the loss rises along the gradient by the gradient's length.
pub(crate) fn check_slopes<R: Replica>(replica: &mut R, batch: &R::Batch) {
    check_slopes_of(replica, batch, |replica| replica.evaluate(batch, None).unwrap());
}

/// As [`check_slopes`], with the loss of a training pass.
pub(crate) fn check_training_slopes<R: Replica>(replica: &mut R, batch: &R::Batch) {
    check_slopes_of(replica, batch, |replica| gathered(replica, batch).tally.unwrap());
}

fn check_slopes_of<R: Replica>(replica: &mut R, batch: &R::Batch, loss: impl Fn(&mut R) -> LossSums) {
    let gradients = gathered(replica, batch).gradients;
    assert_eq!(gradients.len(), replica.parameters().iter().filter(|parameter| parameter.is_trained).count());
    for (index, gradient) in gradients {
        let length = gradient.iter().map(|slope| slope * slope).sum::<f32>().sqrt();
        let mut start = Vec::new();
        replica.with_values(index, &mut |values| start = values.to_vec()).unwrap();
        let mut at = |distance: f32| {
            let moved = |(start, slope): (&f32, &f32)| start + distance * slope / length;
            let moved: Vec<f32> = start.iter().zip(&gradient).map(moved).collect();
            replica.with_values(index, &mut |values| values.copy_from_slice(&moved)).unwrap();
            loss(replica).loss as f32
        };
        let step = 0.003;
        let slope = (at(step) - at(-step)) / (2.0 * step);
        at(0.0);
        let name = &replica.parameters()[index].name;
        assert!((slope - length).abs() < 0.02 * length + 2e-3, "{name}: {slope} {length}");
    }
}

/// Checks that the composition of a function has the same values and derivative as its loops.
pub(crate) fn check_composed<F: operation::Function>(function: impl Fn() -> F, x: &Tensor) {
    check_against(|x| function().composed(x), &function, x);
}

/// As [`check_composed`], with this composition.
pub(crate) fn check_against<F: operation::Function>(
    composed: impl Fn(&Tensor) -> candle_core::Result<Tensor>,
    function: impl Fn() -> F,
    x: &Tensor,
) {
    let x = candle_core::Var::from_tensor(x).unwrap();
    let [(y, dx), (y_composed, dx_composed)] = [false, true].map(|is_composed| {
        let y = if is_composed { composed(&x) } else { apply(function(), &x) }.unwrap();
        // Each value has a different weight.
        let weights: Vec<f32> = (0..y.elem_count()).map(|at| (at * 5 % 7) as f32 - 2.0).collect();
        let weights = Tensor::from_vec(weights, y.shape(), &Device::Cpu).unwrap();
        let gradients = (&y * weights).unwrap().sum_all().unwrap().backward().unwrap();
        (y, gradients.get(&x).unwrap().clone())
    });
    assert_close(F::NAME, &y, &y_composed);
    assert_close(F::NAME, &dx, &dx_composed);
}

fn assert_close(name: &str, expected: &Tensor, found: &Tensor) {
    assert_eq!(expected.dims(), found.dims(), "{name}");
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (expected, found) = (values(expected), values(found));
    let scale = expected.iter().fold(1e-3_f32, |most, value| most.max(value.abs()));
    for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
        assert!((expected - found).abs() <= 1e-5 * scale, "{name} at {at}: {expected} {found}");
    }
}

/// Checks that two replicas with the same values have the same gradients.
pub(crate) fn check_same_gradients<R: Replica, S: Replica<Batch = R::Batch>>(
    one: &mut R,
    other: &mut S,
    batch: &R::Batch,
) {
    assert_eq!(one.parameters(), other.parameters());
    let sorted = |mut gathered: Gathered| {
        gathered.gradients.sort_by_key(|(index, _)| *index);
        gathered.gradients
    };
    let (ones, others) = (sorted(gathered(one, batch)), sorted(gathered(other, batch)));
    assert_eq!((ones.len(), others.len()), (one.parameters().len(), one.parameters().len()));
    for ((index, expected), (_, found)) in ones.iter().zip(&others) {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
        assert_close(&one.parameters()[*index].name, &tensor(expected), &tensor(found));
    }
}

/// A receiver of gradients that provides the values of parameters to a pass that begins without them.
struct Brings {
    values: Vec<Vec<f32>>,
    /// The indices of parameters, in the order in which their values were requested.
    brought: Vec<usize>,
    gathered: Gathered,
}

impl Gradients for Brings {
    fn wait_for_param(&mut self, index: usize, values: &mut [f32]) -> Result<(), ReplicaError> {
        if !self.brought.contains(&index) {
            values.copy_from_slice(&self.values[index]);
            self.brought.push(index);
        }
        Ok(())
    }

    fn record_loss(&mut self, tally: LossSums) {
        assert_eq!(self.brought.len(), self.values.len(), "all have come before the pass is weighed");
        self.gathered.record_loss(tally);
    }

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        self.gathered.put(index, write);
    }
}

/// Checks that a pass uses no value before requesting it. Returns the order of the requests.
pub(crate) fn check_brought<R: Replica>(replica: &mut R, batch: &R::Batch) -> Vec<usize> {
    let expected = gathered(replica, batch);
    let mut values = Vec::new();
    for index in 0..replica.parameters().len() {
        let take = &mut |there: &mut [f32]| {
            values.push(there.to_vec());
            there.fill(f32::NAN);
        };
        replica.with_values(index, take).unwrap();
    }
    assert!(replica.brings_values());
    let gathered = Gathered { sizes: expected.sizes.clone(), ..Gathered::default() };
    let mut brings = Brings { values, brought: Vec::new(), gathered };
    replica.pass(batch, &mut brings).unwrap();
    assert_eq!(brings.gathered.tally, expected.tally);
    assert_eq!(brings.gathered.gradients, expected.gradients);
    brings.brought
}

#[test]
fn parameters_without_a_layer_are_requested_first() {
    let parameters = Parameters::new(5);
    let first = Linear::new(&parameters, "first", 6, 5, 2.0).unwrap().with_relu();
    let second = candle_nn::linear(5, 4, parameters.var_builder().pp("second")).unwrap();
    let third = Linear::without_bias(&parameters, "third", 4, 3, 1.0).unwrap();
    let shared = parameters.add("shared", (6, 6), 0.4).unwrap();
    let also_shared = parameters.var_builder().get((6, 6), "shared").unwrap();
    let mut replica = replica(&parameters, move |x| {
        let x = (x.matmul(&also_shared)? + x.matmul(&shared)?)?;
        third.forward(&second.forward(&first.forward(&x)?)?)
    });
    let names: Vec<_> = replica.parameters().iter().map(|parameter| parameter.name.clone()).collect();
    let brought = check_brought(&mut replica, &inputs());
    let brought: Vec<_> = brought.into_iter().map(|index| names[index].as_str()).collect();
    let expected = ["second.weight", "second.bias", "shared", "first.bias", "first.weight", "third"];
    assert_eq!(brought, expected);
}

fn inputs() -> Tensor {
    let values: Vec<f32> = (0..24).map(|at| (at * 7 % 13) as f32 / 6.0 - 1.0).collect();
    Tensor::from_vec(values, (4, 6), &Device::Cpu).unwrap()
}

#[test]
fn candle_nn_model_reports_gradients_from_the_last_layer_to_the_first() {
    let parameters = Parameters::new(3);
    let builder = parameters.var_builder();
    let first = candle_nn::linear(6, 5, builder.pp("first")).unwrap();
    let second = candle_nn::linear(5, 3, builder.pp("second")).unwrap();
    let mut replica = replica(&parameters, move |x| second.forward(&first.forward(x)?.tanh()?));
    let names: Vec<_> = replica.parameters().iter().map(|parameter| parameter.name.clone()).collect();
    assert_eq!(names, ["first.weight", "first.bias", "second.weight", "second.bias"]);
    let order: Vec<_> =
        gathered(&mut replica, &inputs()).gradients.into_iter().map(|(index, _)| index).collect();
    let place = |index| order.iter().position(|&put| put == index).unwrap();
    assert!(place(2).max(place(3)) < place(0).min(place(1)), "{order:?}");
    check_slopes(&mut replica, &inputs());
}

#[test]
fn linear_layer_gradients_equal_the_slopes_of_the_loss() {
    for has_relu in [false, true] {
        let parameters = Parameters::new(5);
        let relu = |layer: Linear| if has_relu { layer.with_relu() } else { layer };
        let first = relu(Linear::new(&parameters, "first", 6, 5, 2.0).unwrap());
        let second = Linear::without_bias(&parameters, "second", 5, 3, 1.0).unwrap();
        let mut replica = replica(&parameters, move |x| second.forward(&first.forward(x)?));
        check_slopes(&mut replica, &inputs());
    }
}

#[test]
fn composed_linear_layer_matches_the_loops() {
    let [mut fused, mut composed] = [Parameters::new(5), Parameters::composed(5)].map(|parameters| {
        let first = Linear::new(&parameters, "first", 6, 5, 2.0).unwrap().with_relu();
        let second = Linear::without_bias(&parameters, "second", 5, 3, 1.0).unwrap();
        replica(&parameters, move |x| second.forward(&first.forward(x)?))
    });
    check_same_gradients(&mut fused, &mut composed, &inputs());
}

#[test]
fn composed_cross_entropy_matches_the_loops() {
    let targets = vec![5_u32, 0, 2, 2];
    let there = Tensor::new(&*targets, &Device::Cpu).unwrap();
    let function = || loss::CrossEntropy { targets: targets.clone(), there: there.clone() };
    check_composed(function, &(inputs() * 3.0).unwrap());
}

#[test]
fn values_are_written_in_place() {
    for shape in [&[2, 3][..], &[6], &[1], &[]] {
        let count = shape.iter().product::<usize>();
        let tensor = Parameters::new(1).add("one", shape, 1.0).unwrap();
        let values = Tensor::from_vec(vec![7.0_f32; count], shape, &Device::Cpu).unwrap();
        overwrite(&tensor, &values).unwrap();
        assert_eq!(tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap(), vec![7.0; count]);
    }
}

/// The cases are several blocks of images, complete and incomplete, with strides and padding.
#[test]
fn composed_convolutions_match_the_loops() {
    let shapes = [([2, 5, 4, 3], 3), ([2, 1, 2, 3], 2), ([5, 40, 42, 2], 5)];
    for ((dims, outputs), (side, stride, padding)) in
        shapes.into_iter().flat_map(|shape| [(3, 1, 1), (3, 2, 1), (1, 1, 0)].map(|patches| (shape, patches)))
    {
        let count = dims.iter().product::<usize>() as u32;
        let values = (0..count).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let images = Tensor::from_vec(values, &dims, &Device::Cpu).unwrap();
        let [mut fused, mut composed] = [Parameters::new(5), Parameters::composed(5)].map(|parameters| {
            let inputs = side * side * dims[3];
            let linear = Linear::new(&parameters, "kernel", inputs, outputs, 1.0).unwrap().with_relu();
            let convolution = Convolution::new(linear, Patches { side, stride, padding });
            let (own, scale) = (parameters.clone(), parameters.add("scale", &dims[..], 1.0).unwrap());
            // Scaling makes candle compute the derivative of the images.
            replica(&parameters, move |x| chain(&own, &[&convolution], &(x * &scale)?))
        });
        check_same_gradients(&mut fused, &mut composed, &images);
    }
}

#[test]
fn weight_used_twice_reports_its_summed_gradient_once() {
    let parameters = Parameters::new(5);
    let weight = parameters.add("shared", (6, 6), 0.4).unwrap();
    let mut replica = replica(&parameters, move |x| x.matmul(&weight)?.matmul(&weight));
    assert_eq!(gathered(&mut replica, &inputs()).gradients.len(), 1);
    check_slopes(&mut replica, &inputs());
}

#[test]
fn weight_of_a_linear_layer_is_not_shared() {
    let parameters = Parameters::new(5);
    let _layer = Linear::without_bias(&parameters, "layer", 6, 6, 1.0).unwrap();
    let refused = parameters.var_builder().get((6, 6), "layer").unwrap_err().to_string();
    assert!(refused.contains("parameter layer belongs to a layer of unisono"), "{refused}");
}

#[test]
fn second_use_of_a_linear_layer_is_an_error() {
    let parameters = Parameters::new(5);
    let layer = Linear::without_bias(&parameters, "twice", 6, 6, 1.0).unwrap();
    let mut replica = replica(&parameters, move |x| layer.forward(&layer.forward(x)?));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pass_into_buckets(&mut replica);
    }));
    let message = panic.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("twice was put twice in one pass"), "{message}");
}

/// Runs one pass into real buckets.
fn pass_into_buckets(replica: &mut impl Replica<Batch = Tensor>) {
    use unisono_train::{BucketSettings, Buckets, Pass};
    let mut comm = unisono::Unisono::builder().threads(1).unwrap().remove(0);
    let mut buckets = Buckets::new(&mut comm, replica.parameters(), &BucketSettings::default()).unwrap();
    let mut filling = buckets.fill(&mut comm, Pass::ONLY);
    replica.pass(&inputs(), &mut filling).unwrap();
    filling.end().unwrap();
}

#[test]
fn parameter_that_the_loss_adds_is_an_error() {
    let parameters = Parameters::new(5);
    let (first, late) = (parameters.add("first", (6, 6), 0.4).unwrap(), parameters.var_builder());
    let mut replica = replica(&parameters, move |x| x.matmul(&first)?.matmul(&late.get((6, 6), "late")?));
    let mut gathered = Gathered { sizes: vec![36], ..Gathered::default() };
    let refused = replica.pass(&inputs(), &mut gathered).unwrap_err().to_string();
    assert!(refused.starts_with("parameter late was added too late"), "{refused}");
}

#[test]
fn duplicate_names_and_changed_shapes_are_refused() {
    let parameters = Parameters::new(0);
    parameters.add("weight", 3, 1.0).unwrap();
    assert!(
        parameters
            .add("weight", 3, 1.0)
            .unwrap_err()
            .to_string()
            .contains("two parameters have the name weight")
    );
    let wrong = parameters.var_builder().get(4, "weight").unwrap_err();
    assert!(wrong.to_string().contains("[4]"), "{wrong}");
}

#[test]
fn seed_and_name_determine_initial_values() {
    let draw = |seed, name: &str| {
        let tensor = Parameters::new(seed).var_builder().get_with_hints(
            64,
            name,
            candle_nn::init::DEFAULT_KAIMING_NORMAL,
        );
        tensor.unwrap().to_vec1::<f32>().unwrap()
    };
    assert_eq!(draw(1, "a"), draw(1, "a"));
    assert_ne!(draw(1, "a"), draw(2, "a"));
    assert_ne!(draw(1, "a"), draw(1, "b"));
}

#[test]
fn cross_entropy_matches_candle() {
    let logits = (inputs() * 3.0).unwrap();
    let targets = Tensor::new(&[5_u32, 0, 3, 3], &Device::Cpu).unwrap();
    let ours = cross_entropy(&logits, &targets).unwrap().to_scalar::<f32>().unwrap();
    let mean = candle_nn::loss::cross_entropy(&logits, &targets).unwrap().to_scalar::<f32>().unwrap();
    assert!((ours - 4.0 * mean).abs() < 1e-4, "{ours} {mean}");
    assert!(cross_entropy(&logits, &Tensor::new(&[9_u32, 0, 3, 3], &Device::Cpu).unwrap()).is_err());
    assert_eq!(logits.dtype(), DType::F32);
    // A loss may leave out all rows, such as padding.
    let none =
        Loss::cross_entropy(&logits.narrow(0, 0, 0).unwrap(), &targets.narrow(0, 0, 0).unwrap()).unwrap();
    assert_eq!((none.tally.targets, none.tally.loss, none.tally.correct), (0.0, 0.0, 0.0));
}
