"""The long drills: faults, storms, kills. `make reliability` runs them whole, the default tests a tenth of each."""
