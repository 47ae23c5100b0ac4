"""The stores of locks side by side: their servers, and client processes that measure."""
