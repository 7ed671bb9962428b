"""What kinds of algorithms share when they learn: targets, the optimiser step, and when a batch is learned from."""

from zerobeast.rl.learning.circular import Circular as Circular
from zerobeast.rl.learning.dual import Dual as Dual
from zerobeast.rl.learning.gradient_descent import GradientDescent as GradientDescent
from zerobeast.rl.learning.gradient_descent import Step as Step
from zerobeast.rl.learning.gradient_descent import summarize_steps as summarize_steps
from zerobeast.rl.learning.one_batch import OneBatch as OneBatch
from zerobeast.rl.learning.parts import Parts as Parts
from zerobeast.rl.learning.replay_learning import ReplayLearning as ReplayLearning
from zerobeast.rl.learning.replay_learning import UpdateResult as UpdateResult
from zerobeast.rl.learning.returns import estimate as estimate
from zerobeast.rl.learning.returns import explained_variance as explained_variance
from zerobeast.rl.learning.returns import shape_rewards as shape_rewards
from zerobeast.rl.learning.target import Target as Target
