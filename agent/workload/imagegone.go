package workload

import "errors"

// ErrImageGone marks what cannot be done since an image is not on the device any more. The image is pulled again.
var ErrImageGone = errors.New("the image is not on this device")
