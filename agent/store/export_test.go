package store

// DecodeAll reads data as each kind of record.
func DecodeAll(data []byte) map[string]error {
	return map[string]error{
		"state": decode("x", data, new(State)), "refused": decode("x", data, new(Refused)), "bad": decode("x", data, new(Bad)),
		"good": decode("x", data, new(Good)), "trust": decode("x", data, new(Trust)),
		"status": decode("x", data, new(Status)), "report": decode("x", data, new(Report)), "gap": decode("x", data, new(Gap)),
	}
}
