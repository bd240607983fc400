"""The stage that decides: rules with finite-sample promises from labelled cases, applied to new ones."""
