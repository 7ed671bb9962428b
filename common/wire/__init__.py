"""Messages between services; exported are the descriptions of observations, actions and the rows that carry them."""

from zerobeast.common.text import short as short
from zerobeast.common.wire.description import flatten as flatten
from zerobeast.common.wire.layout import Block as Block
from zerobeast.common.wire.layout import Field as Field
from zerobeast.common.wire.layout import RecordSpec as RecordSpec
from zerobeast.common.wire.records import Origin as Origin
from zerobeast.common.wire.records import act_record as act_record
from zerobeast.common.wire.records import action_record as action_record
from zerobeast.common.wire.records import rollout_record as rollout_record
from zerobeast.common.wire.records import step_record as step_record
from zerobeast.common.wire.seeds import MAX_ENV_SEED as MAX_ENV_SEED
from zerobeast.common.wire.seeds import EnvSeeds as EnvSeeds
from zerobeast.common.wire.spaces import ArraySpace as ArraySpace
from zerobeast.common.wire.spaces import CompositeSpace as CompositeSpace
from zerobeast.common.wire.spaces import Space as Space
from zerobeast.common.wire.spaces import iterate_arrays as iterate_arrays
from zerobeast.common.wire.spaces import nest_values as nest_values
from zerobeast.common.wire.specs import ROLLOUT_FIELDS as ROLLOUT_FIELDS
from zerobeast.common.wire.specs import EnvSpec as EnvSpec
from zerobeast.common.wire.specs import PolicySpec as PolicySpec
