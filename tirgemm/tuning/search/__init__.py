"""The search for the fastest config: spaces, static rules, features, the cost model, and MetaSchedule driven
directly."""
