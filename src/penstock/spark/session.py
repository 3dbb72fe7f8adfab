from penstock.spark.sessions import *  # noqa
from penstock.spark.sessions import session, active_session, has_connector, can_load, warm_workers  # noqa
