"""Our simulator beside others: `disaggroute bench peers` gives the same trace and step times to both."""
