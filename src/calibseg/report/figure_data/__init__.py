"""What figures show, as small tables; nothing is drawn here, so `plots` and `report` each draw it their own way."""
