package artifacts

import "errors"

var errUnfinished = errors.New("not there yet")

// DeviceID names a device: "press-07", or "gateway-1/press-07" behind a gateway.
type DeviceID string

// ParseDeviceID checks a device id.
func ParseDeviceID(s string) (DeviceID, error) { return "", errUnfinished }

// Tag is the tag of the device's state: readable where the id allows, unique always.
func (d DeviceID) Tag() string { return "" }

// HistoryTag is the tag that one generation keeps: "press-07.v42".
func HistoryTag(tag string, generation uint64) string { return "" }
