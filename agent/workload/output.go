package workload

import "strings"

// OutputLabel is what comes in an error message before the last lines that a container wrote. They end the message.
const OutputLabel = "; its last output:\n  "

// WithoutOutput is an error message without what a container wrote: there may be secrets in it.
func WithoutOutput(message string) string {
	message, _, _ = strings.Cut(message, OutputLabel)
	return message
}
